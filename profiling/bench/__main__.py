"""`python -m profiling.bench`: how fast the operators are, next to their floor and plain PyTorch.

`--help` has the options; measure.py says what is in a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.recipes.errors import InputError

from ..commands import Parser, Progress, add_measuring, measure_rows, run_columns, run_command
from ..results import BENCH, Row, read
from . import growth, host, truncation
from .cases import DTYPES, OPERATORS, PRESETS, SAMPLERS, Case, preset_cases
from .measure import COMPILED, PEERS, Bench
from .page import page
from .timing import MEBIBYTE, bandwidths, clock_of

GROWTH, TRUNCATION, HOST = "growth", "truncation", "host"
SECONDS = {
    "tiny": 0.02,
    "short": 1.0,
    "serving": 3.0,
    "variants": 1.0,
    "training": 20.0,
    GROWTH: 0.5,
    TRUNCATION: 2.0,
    HOST: 1.0,
}

DESCRIPTION = """\
Times the operators with a cold cache, next to the time that their bytes take at the bandwidth
measured in the same run, and next to plain PyTorch that does the same work on the same inputs.
Ctrl-C keeps the finished rows."""


def parser() -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.bench", description=DESCRIPTION)
    add_measuring(parser, "JSON file to append rows to; next to it the same rows as a table")
    add = parser.add_argument
    add(
        "--preset",
        choices=(*PRESETS, GROWTH, TRUNCATION, HOST),
        default="short",
        help="tiny: whether it runs; short: a minute on a GPU; serving: the shapes of a model of "
        "8 B parameters; variants: some of them at another temperature, of other dtypes, and with "
        "an odd vocabulary; training: α of 512 rows with its gradient; growth: how time grows with "
        "sizes; truncation: what top-k, top-p, min-p and masks cost; host: what a step "
        "costs without its work, on one thread (%(default)s)",
    )
    add(
        "--statistics",
        type=Path,
        metavar="FILE",
        help="with --preset truncation: .npz with mean_prob and var_prob, float32 [V_t] each, of a "
        "model's probabilities (Zipf's law)",
    )

    def some(option: str, names: Sequence[str], default: Sequence[str] | None, help: str) -> None:
        every = f"some of {', '.join(names)} ({help})"
        nargs = "*" if default is None else "+"
        add(option, nargs=nargs, choices=names, default=default, metavar="NAME", help=every)

    some("--operators", OPERATORS, OPERATORS, "all")
    some("--dtype", DTYPES, DTYPES, "both, as far as the preset has them")
    some("--peers", PEERS, None, f"all; {COMPILED} only with --preset serving or training")
    add("--sampler", choices=SAMPLERS, default="virtual", help="the affinity (%(default)s)")
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
    """The cases of a preset, or how time grows."""
    if arguments.preset == TRUNCATION:
        return measure_rows(
            arguments, TRUNCATION, lambda shown: truncated(arguments, shown), truncation.summary
        )
    if arguments.preset == HOST:
        return measure_rows(arguments, HOST, lambda shown: on_the_host(arguments), host.summary)
    if arguments.preset != GROWTH:
        cases = chosen_cases(arguments)
        return measure_rows(arguments, BENCH, lambda shown: rows(arguments, cases, shown), page)
    code = measure_rows(arguments, GROWTH, lambda shown: fits(arguments, shown), growth.summary)
    if arguments.output and find_spec("matplotlib"):
        growth.plot(read(arguments.output, GROWTH), arguments.output.with_suffix(".png"))
    return code


def chosen_cases(arguments: argparse.Namespace) -> list[Case]:
    """The cases of the preset that were asked for."""
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
    return cases


def rows(arguments: argparse.Namespace, cases: Sequence[Case], shown: Progress) -> Iterator[Row]:
    """A row for each case that can be measured."""
    bench = bench_of(arguments, shown)
    for number, case in enumerate(cases, 1):
        shown.show(f"[{number}/{len(cases)}] {case.name}")
        try:
            yield bench.row(case)
        except RuntimeError as error:  # out of memory, too
            shown.fail(case.name, error)


def fits(arguments: argparse.Namespace, shown: Progress) -> Iterator[Row]:
    """A row for each operator and size."""
    bench = bench_of(arguments, shown)
    bench.peers = ()
    sizes = growth.ON_GPU if arguments.device == "cuda" else growth.SIZES
    axes = list(
        growth.growth_cases(arguments.operators, arguments.dtype[0], arguments.sampler, sizes)
    )
    for number, (operator, axis, along) in enumerate(axes, 1):
        shown.show(f"[{number}/{len(axes)}] {operator} with {growth.SYMBOLS[axis]}")
        yield growth.measure_growth(operator, axis, along, bench.row)


def truncated(arguments: argparse.Namespace, shown: Progress) -> Iterator[Row]:
    """A row for each operator, shape, dtype, batch and limits."""
    statistics = truncation.Statistics.read(arguments.statistics)
    bench = bench_of(arguments, shown)
    cases = list(truncation.truncation_rows(statistics, arguments.dtype, bench.alternately))
    for number, (name, measure) in enumerate(cases, 1):
        shown.show(f"[{number}/{len(cases)}] {name}")
        yield measure()


def on_the_host(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each call of a step."""
    torch.set_num_threads(1)
    seconds = arguments.seconds or SECONDS[HOST]
    return host.host_rows(arguments.repeats, seconds, run_columns(parser(), arguments))


def bench_of(arguments: argparse.Namespace, shown: Progress) -> Bench:
    """The clock, the bandwidths and what all rows have in common."""
    shown.show("measuring bandwidth")
    device, tiny = torch.device(arguments.device), arguments.preset == "tiny"
    clock = clock_of(device, tiny)
    peers = arguments.peers
    if peers is None:
        peers = [
            each
            for each in PEERS
            if each != COMPILED or arguments.preset in ("serving", "training")
        ]
    return Bench(
        device,
        clock,
        bandwidths(clock, device, (32 if tiny else 512) * MEBIBYTE),
        peers,
        arguments.seconds or SECONDS[arguments.preset],
        arguments.repeats,
        run_columns(parser(), arguments),
    )


if __name__ == "__main__":
    sys.exit(main())
