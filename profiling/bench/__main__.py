"""`python -m profiling.bench`: how fast the operators are, next to their floor and plain PyTorch.

`--help` has the options; measure.py says what is in a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.cli.errors import InputError

from ..commands import (
    Parser,
    Progress,
    command_line,
    measured,
    one_line,
    refuse_device,
    run_command,
)
from ..machine import describe, now
from ..results import Results, Row
from . import growth
from .cases import DTYPES, OPERATORS, PRESETS, SAMPLERS, Case, preset_cases
from .measure import COMPILED, PEERS, Bench
from .page import page
from .timing import MEBIBYTE, CpuClock, CudaClock, bandwidths

GROWTH = "growth"
SECONDS = {"tiny": 0.02, "short": 1.0, "serving": 3.0, GROWTH: 0.5}
CPU_THREADS = 2  # of the preset serving

DESCRIPTION = """\
Times the operators with a cold cache, next to the time that their bytes take at the bandwidth
measured in the same run, and next to plain PyTorch that does the same work on the same inputs.
Ctrl-C keeps the finished rows."""


def parser() -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.bench", description=DESCRIPTION)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), required=True)
    add(
        "--preset",
        choices=(*PRESETS, GROWTH),
        default="short",
        help="tiny: whether it runs; short: a minute on a GPU; serving: the shapes of a model of "
        "8 B parameters; growth: how time grows with sizes, alone (%(default)s)",
    )

    def some(option: str, names: Sequence[str], default: Sequence[str] | None, help: str) -> None:
        every = f"some of {', '.join(names)} ({help})"
        nargs = "*" if default is None else "+"
        add(option, nargs=nargs, choices=names, default=default, metavar="NAME", help=every)

    some("--operators", OPERATORS, OPERATORS, "all")
    some("--dtype", DTYPES, DTYPES, "both, as far as the preset has them")
    some("--peers", PEERS, None, f"all; {COMPILED} only with --preset serving")
    add("--sampler", choices=SAMPLERS, default="virtual", help="the affinity (%(default)s)")
    add("--growth", action="store_true", help="fit how time grows with sizes, too")
    add("--output", type=Path, metavar="FILE", help="JSON file to append rows to")
    add(
        "--threads",
        type=natural,
        metavar="N",
        help=f"on the CPU (torch's own number; {CPU_THREADS} with --preset serving)",
    )
    add("--repeats", type=natural, metavar="N", default=200, help="rounds at most (%(default)s)")
    seconds = ", ".join(f"{name} {value:g}" for name, value in SECONDS.items())
    add(
        "--seconds",
        type=positive,
        metavar="S",
        help=f"for the rounds of one row, at least three of them (by preset: {seconds})",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Check, measure, print; `Results` has each row on disk as soon as it is there."""
    cases = []
    if arguments.preset != GROWTH:
        cases = [
            case
            for case in preset_cases(arguments.preset, arguments.device, arguments.sampler)
            if case.operator in arguments.operators and case.dtype in arguments.dtype
        ]
        if not cases:
            raise InputError(
                f"--preset {arguments.preset} has no case of --operators "
                f"{' '.join(arguments.operators)} in --dtype {' '.join(arguments.dtype)}; "
                "ask for more of them"
            )
    refuse_device(arguments)
    results = Results(arguments.output)
    fits: list[Row] = []

    def show() -> None:
        if fits:
            print(growth.summary(fits), end="\n\n")
            if results.path and not growth.plot(fits, results.path.with_suffix(".png")):
                print("No picture: matplotlib is not installed.", file=sys.stderr)
        if results.new_rows:
            print(page(results.new_rows))

    return measured(
        results, lambda progress: measure(arguments, cases, results, fits, progress), show
    )


def measure(
    arguments: argparse.Namespace,
    cases: Sequence[Case],
    results: Results,
    fits: list[Row],
    progress: Progress,
) -> int:
    """All rows, then the growth; returns 1 if a case failed."""
    if arguments.threads or (arguments.device == "cpu" and arguments.preset == "serving"):
        torch.set_num_threads(arguments.threads or CPU_THREADS)
    progress.show("measuring bandwidth")
    bench, failed = bench_of(arguments), 0
    for number, case in enumerate(cases, 1):
        progress.show(f"[{number}/{len(cases)}] {case.name}")
        try:
            results.append(bench.row(case))
        except torch.OutOfMemoryError:
            progress.say(f"left out, out of memory: {case.name}")
        except RuntimeError as error:
            progress.say(f"failed: {case.name}: {one_line(error)}")
            failed = 1
    if not (arguments.growth or arguments.preset == GROWTH):
        return failed
    bench.peers = ()
    sizes = growth.ON_GPU if arguments.device == "cuda" else growth.SIZES
    if arguments.preset == "tiny":
        sizes = growth.TINY
    dtype, sampler = arguments.dtype[0], arguments.sampler
    axes = list(growth.growth_cases(arguments.operators, dtype, sampler, sizes))
    for number, (operator, axis, along) in enumerate(axes, 1):
        progress.show(f"[growth {number}/{len(axes)}] {operator} with {growth.SYMBOLS[axis]}")
        fits.append(growth.measure_growth(operator, axis, along, bench.row))
        results.append(fits[-1], "growth")
    return failed


def bench_of(arguments: argparse.Namespace) -> Bench:
    """The clock, the bandwidths and what all rows have in common."""
    device = torch.device(arguments.device)
    tiny = arguments.preset == "tiny"
    clock = CudaClock() if device.type == "cuda" else CpuClock(MEBIBYTE if tiny else None)
    peers = arguments.peers
    if peers is None:
        peers = [each for each in PEERS if each != COMPILED or arguments.preset == "serving"]
    return Bench(
        device,
        clock,
        bandwidths(clock, device, (32 if tiny else 512) * MEBIBYTE),
        peers,
        arguments.seconds or SECONDS[arguments.preset],
        arguments.repeats,
        {"run": now(), "command": command_line(parser(), arguments), **describe(device)},
    )


if __name__ == "__main__":
    sys.exit(main())
