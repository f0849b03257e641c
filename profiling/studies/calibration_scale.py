"""How long virtual tokens take to calibrate at the size of a real model, and in how much memory.

`python -m profiling.studies.calibration_scale` makes a head and hidden states of the size of
Llama 3.1 8B (V_t 128,256, d 4,096) at random, keeps a quarter of the vocabulary, and goes on
to a calibrated drafter with 64 virtual tokens. It prints seconds and peak memory of each stage. The
states lie in a subspace and decay, as those of real models do; the head's rows have clusters.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from rdk_cuda import RecentTokens, Vocabulary
from rdk_cuda.calibration import (
    PrunedDrafter,
    Samples,
    calibrate_offsets,
    cluster_pruned_tokens,
    virtual_drafter,
    with_offsets,
)
from rdk_cuda.cli.arguments import natural, share
from rdk_cuda.files import write_json

from ..commands import Parser, run_command
from ..machine import describe, now
from ..tables import table

TEMPERATURE = 0.7
CONTEXT = 64
DOCUMENTS = 12
_BLOCK = 256  # samples whose logits are held at a time

Row = dict[str, Any]
Made = TypeVar("Made")


class Stages:
    """Runs one stage after the other and notes what each took."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def run(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` returns."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.perf_counter()
        made = make()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.rows.append({"stage": name, "seconds": seconds, "peak_bytes": peak})
        return made


def synthetic_head(size: int, width: int, dtype: torch.dtype) -> Tensor:
    """`[size, width]`: 200 centres and the tokens around them."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(200, width, generator=random)
    weight = torch.empty(size, width, dtype=dtype)
    for rows in torch.arange(size).split(1 << 13):
        near = centres[torch.randint(200, (len(rows),), generator=random)]
        weight[rows] = (near + torch.randn(near.shape, generator=random)).to(dtype)
    return weight


def synthetic_hidden(count: int, width: int) -> Tensor:
    """`[count, width]` whose logits have a standard deviation of about 3."""
    random = torch.Generator().manual_seed(2)
    scales = (1 + torch.arange(width)) ** -0.5
    scales *= 2 / scales.norm()
    return torch.randn(count, width, generator=random) * scales


def synthetic_samples(weight: Tensor, hidden: Tensor, recorded: int) -> Samples:
    """Samples of a target that is the drafter with noise."""
    random = torch.Generator().manual_seed(3)
    count, size = len(hidden), weight.shape[0]
    values, targets, normalizers = [], [], []
    for states in hidden.split(_BLOCK):
        logits = (states.to(weight.dtype) @ weight.T).float()
        logits += torch.randn(logits.shape, generator=random)
        best = logits.topk(recorded, dim=1)
        values.append(best.values)
        targets.append(best.indices.int())
        normalizers.append((logits / TEMPERATURE).logsumexp(1))
    return Samples(
        hidden=hidden.to(weight.dtype),
        targets=torch.cat(targets),
        target_logits=torch.cat(values),
        temperatures=(TEMPERATURE,),
        log_normalizers=torch.cat(normalizers)[:, None],
        contexts=torch.randint(size, (count, CONTEXT), generator=random).int(),
        documents=torch.arange(count) * DOCUMENTS // count,
    )


def measure(options: argparse.Namespace) -> list[Row]:
    """Seconds and peak memory of every stage; of those before it, the peak includes theirs."""
    stages = Stages()
    dtype = getattr(torch, options.dtype)
    weight = stages.run("head", lambda: synthetic_head(options.tokens, options.width, dtype))
    hidden = stages.run("states", lambda: synthetic_hidden(options.states, options.width))
    moment = stages.run("second moment", lambda: hidden.T @ hidden / len(hidden))
    random = torch.Generator().manual_seed(4)
    mean_probs = (
        (1 + torch.randperm(options.tokens, generator=random)).double().reciprocal()
    )  # Zipf
    vocabulary = Vocabulary.most_likely(mean_probs, round(options.keep * options.tokens))
    some = hidden[: options.samples]
    samples = stages.run("samples", lambda: synthetic_samples(weight, some, options.recorded))

    def cluster() -> Tensor:
        return cluster_pruned_tokens(
            weight, vocabulary, mean_probs, options.virtual, hidden_second_moment=moment
        )

    def virtual_rows() -> PrunedDrafter:
        recent = RecentTokens(vocabulary)
        return virtual_drafter(
            head, vocabulary, clusters, mean_probs, temperature=TEMPERATURE, dynamic_tokens=recent
        )

    clusters, head = stages.run("clusters", cluster), (weight, None)
    drafter = stages.run("virtual rows", virtual_rows)
    offsets = stages.run("offsets", lambda: calibrate_offsets(samples, drafter, head, TEMPERATURE))
    stages.run("affinity", lambda: with_offsets(drafter, offsets))
    return stages.rows


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    rows = measure(options)
    lines = [
        (row["stage"], f"{row['seconds']:.1f}", f"{row['peak_bytes'] / 1e9:.2f}") for row in rows
    ]
    print(table(("stage", "seconds", "peak GB"), lines, "lr"))
    print(f"\nIn all {sum(row['seconds'] for row in rows):.0f} seconds.")
    if options.output is not None:
        settings = {name: value for name, value in vars(options).items() if name != "output"}
        about = {"run": now(), **describe(torch.device("cpu")), **settings}
        write_json({**about, "rows": rows}, options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.calibration_scale", description=__doc__)
    add = command.add_argument
    add("--tokens", type=natural, default=128256, metavar="N", help="V_t (%(default)s)")
    add("--width", type=natural, default=4096, metavar="N", help="d (%(default)s)")
    add("--keep", type=share, default=0.25, help="share of the tokens (%(default)s)")
    add("--virtual", type=natural, default=64, metavar="N", help="virtual tokens (%(default)s)")
    add("--states", type=natural, default=16384, metavar="N", help="of the second moment")
    add("--samples", type=natural, default=2048, metavar="N", help="of the offsets")
    add("--recorded", type=natural, default=2048, metavar="N", help="target tokens of a sample")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--output", type=Path, metavar="FILE", help="JSON file to write")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
