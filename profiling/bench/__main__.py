"""`python -m profiling.bench`: how fast the operators are, next to their floor and plain PyTorch.

`--help` has the options; profiling/results.py says what is in a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rdk_cuda.__main__ import INTERRUPTED, Parser
from rdk_cuda.commands.arguments import natural, positive
from rdk_cuda.commands.errors import InputError

from ..commands import Progress, command_line, one_line, refuse_device
from ..machine import describe, now
from ..results import ResultError, Results, Row
from . import growth
from .cases import DTYPES, OPERATORS, PRESETS, SAMPLERS, Case, preset_cases
from .measure import COMPILED, PEERS, Bench
from .page import caption, table
from .timing import MEBIBYTE, CpuClock, CudaClock, bandwidths

GROWTH = "growth"
SECONDS = {"tiny": 0.02, "short": 1.0, "serving": 3.0, "full": 1.0, GROWTH: 0.5}
CPU_THREADS = 2  # of the preset serving

DESCRIPTION = """\
Times the operators with a cold cache, beside the time that their bytes take at the bandwidth
measured in the same run, and beside plain PyTorch that does the same work on the same inputs.
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
        "8 B parameters; full: the whole grid, growth included; growth: that alone "
        "(%(default)s)",
    )
    add(
        "--operators",
        nargs="+",
        choices=OPERATORS,
        default=OPERATORS,
        metavar="NAME",
        help=f"some of {', '.join(OPERATORS)} (all)",
    )
    add(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        default=DTYPES,
        metavar="DTYPE",
        help="float32, bfloat16 (both, as far as the preset has them)",
    )
    add("--sampler", choices=SAMPLERS, default="virtual", help="the affinity (%(default)s)")
    add(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="NAME",
        help=f"some of {', '.join(PEERS)}, or none (all; {COMPILED} only with --preset serving)",
    )
    add(
        "--growth",
        action="store_true",
        help="fit how time grows with V_t, V_d, batch, K, nnz and R too",
    )
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = parser()
    arguments = command.parse_args(argv)
    try:
        return run(arguments)
    except (InputError, ResultError) as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace) -> int:
    """Check, measure, print; `Results` has each row on disk as soon as it is there."""
    check(arguments)
    results = Results(arguments.output)
    fits: list[Row] = []
    progress = Progress()
    try:
        failed = measure(arguments, results, fits, progress)
        exit_code = 1 if failed else 0
    except KeyboardInterrupt:
        results.write()  # it may have come between a row and its file
        exit_code = INTERRUPTED
    progress.clear()
    show(results.new_rows, fits, arguments)
    if exit_code == INTERRUPTED:
        kept = f" in {arguments.output}" if arguments.output else ""
        print(f"Interrupted: {len(results.new_rows)} rows kept{kept}.", file=sys.stderr)
    return exit_code


def check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot work, before anything is made."""
    if arguments.preset != GROWTH and not chosen_cases(arguments):
        raise InputError(
            f"--preset {arguments.preset} has no case of --operators "
            f"{' '.join(arguments.operators)} in --dtype {' '.join(arguments.dtype)}; "
            "ask for more of them"
        )
    refuse_device(arguments)


def chosen_cases(arguments: argparse.Namespace) -> list[Case]:
    """Those of the preset that --operators and --dtype leave."""
    if arguments.preset == GROWTH:
        return []
    return [
        case
        for case in preset_cases(arguments.preset, arguments.device, arguments.sampler)
        if case.operator in arguments.operators and case.dtype in arguments.dtype
    ]


def measure(
    arguments: argparse.Namespace, results: Results, fits: list[Row], progress: Progress
) -> int:
    """All rows, then the growth; returns how many cases failed."""
    if arguments.threads or (arguments.device == "cpu" and arguments.preset == "serving"):
        torch.set_num_threads(arguments.threads or CPU_THREADS)
    progress.show("measuring bandwidth")
    bench = bench_of(arguments)
    cases, failed = chosen_cases(arguments), 0
    for number, case in enumerate(cases, 1):
        progress.show(f"[{number}/{len(cases)}] {case.name}")
        try:
            results.append(bench.row(case))
        except torch.OutOfMemoryError:
            progress.say(f"left out, out of memory: {case.name}")
        except RuntimeError as error:
            progress.say(f"failed: {case.name}: {one_line(error)}")
            failed += 1
    if not (arguments.growth or arguments.preset in ("full", GROWTH)):
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
        results.append_growth(fits[-1])
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
        {"run": now(), "command": command_of(arguments), **describe(device)},
    )


def command_of(arguments: argparse.Namespace) -> str:
    """What to type for the same rows: no paths, and no options at their defaults."""
    defaults = parser().parse_args(["--device", "cpu"])
    return command_line("python -m profiling.bench", arguments, defaults)


def show(rows: list[Row], fits: list[Row], arguments: argparse.Namespace) -> None:
    """The tables, and the picture of the growth."""
    if fits:
        print(growth.summary(fits), end="\n\n")
        if arguments.output:
            picture = arguments.output.with_suffix(".png")
            if not growth.plot(fits, picture):
                print("No picture: matplotlib is not installed.", file=sys.stderr)
    if not rows:
        return
    print(caption(rows), end="\n\n")
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())
