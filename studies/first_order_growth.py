"""How the time to redistribute grows with the vocabulary: first-order RDK next to the dense matrix.

arXiv:2506.03206 says O(N) for the first-order form, whose matrix is never built, and O(N^2) for the
dense one. `python -m studies.first_order_growth` measures both on the CPU, without the time to
build the dense matrix, and fits the exponents.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import rdk_cuda
from profiling.bench.growth import fitted_exponent
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from rdk_cuda.reference import dense

RESULTS = ROOT / "profiling" / "results" / "first-order-growth" / "results.json"

FIRST_ORDER, DENSE = "first-order", "dense"
SIZES = {
    FIRST_ORDER: tuple(2**k for k in range(13, 20)),
    DENSE: (4096, 6144, 8192, 12288),  # 64 to 576 MiB: from memory, not from a cache
}
BATCH, TAU, ROUNDS = 8, 1e-4, 15

Row = dict[str, Any]


def redistribution(form: str, size: int) -> Callable[[], object]:
    """A call that redistributes a batch over `size` tokens, shared by drafter and target."""
    random = torch.Generator().manual_seed(size)
    mean = torch.rand(size, generator=random).pow(3)
    logits = torch.randn(BATCH, size, generator=random)
    if form == DENSE:
        matrix = dense.first_order_rdk(mean, TAU)
        return lambda: dense.exact_redistribute(logits.softmax(1), matrix)
    with warnings.catch_warnings():  # of few accepted drafts: here it is about time
        warnings.simplefilter("ignore", UserWarning)
        affinity = rdk_cuda.Affinity.first_order(rdk_cuda.Vocabulary.identity(size), mean, TAU)
    return lambda: rdk_cuda.redistribute(logits, affinity)


def measure(sizes: Mapping[str, Sequence[int]], rounds: int = ROUNDS) -> list[Row]:
    """Seconds of one thread's own time for each form and size, the forms in turn."""
    rows = []
    for size in sorted({size for each in sizes.values() for size in each}):
        print(f"V = {size:,} ...", file=sys.stderr)
        calls = {form: redistribution(form, size) for form in sizes if size in sizes[form]}
        times: dict[str, list[float]] = {form: [] for form in calls}
        for call in calls.values():
            call()
        for _ in range(rounds):
            for form, call in calls.items():
                start = time.thread_time()
                call()
                times[form].append(time.thread_time() - start)
        for form, seconds in times.items():
            rows.append({"form": form, "size": size, "fastest_seconds": min(seconds)})
    return rows


def exponents(rows: Sequence[Row]) -> dict[str, float]:
    """The exponent of each form, fitted to the fastest times, as other load only adds to a time."""
    fitted = {}
    for form in dict.fromkeys(row["form"] for row in rows):
        points = [(row["size"], row["fastest_seconds"]) for row in rows if row["form"] == form]
        fitted[form] = fitted_exponent(*zip(*points, strict=True))
    return fitted


def run(options: argparse.Namespace) -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # whose own time is measured, whatever else the machine does
    rows = measure(SIZES)
    fitted = exponents(rows)
    write_found(options.output, batch=BATCH, rows=rows, exponents=fitted)
    grows = ", ".join(f"{form} as V^{exponent:.2f}" for form, exponent in fitted.items())
    print(f"Time grows: {grows}. Written to {options.output}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.first_order_growth", description=__doc__)
    command.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
