"""`python -m profiling.studies.acceptance`: what every method recovers, as a report.

Makes report.md, its plots and its data in one folder, from the demo's models. Each part
(parts.py) is a file of its own, written when it is finished: an interrupted run goes on
with the part that it was in, and several can run at the same time with `--part`, 10 GB of memory
each. The report is written anew from all parts that are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.demo.shipped import load_shipped
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.progress import Stages
from rdk_cuda.evaluation.rows import read_evaluation, write_evaluation

from ...commands import Parser, run_command
from ...machine import ROOT, describe, now
from .laboratory import Laboratory, Settings, measure_part
from .report import write_report

__all__ = ["RESULTS", "main"]

RESULTS = ROOT / "profiling" / "results" / "acceptance"


def parser(settings: Settings) -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.studies.acceptance", description=__doc__)
    add = parser.add_argument
    add(
        "--part",
        action="append",
        choices=tuple(settings.parts),
        metavar="NAME",
        help=f"one of {', '.join(settings.parts)}; may be repeated (all)",
    )
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder (%(default)s)")
    add("--threads", type=natural, default=1, metavar="N", help="of torch (%(default)s)")
    add("--again", action="store_true", help="run parts that are there with the same settings too")
    return parser


def main(arguments: Sequence[str] | None = None, settings: Settings | None = None) -> int:
    """Run the command; returns its exit code."""
    chosen = settings or Settings()
    return run_command(parser(chosen), lambda given: run(given, chosen), arguments)


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Measure the parts that are missing, then write the report."""
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    wanted = options.part or list(settings.parts)
    missing = [name for name in wanted if options.again or not finished(name, options, settings)]
    for name in wanted:
        if name not in missing:
            print(f"{name}: there already, with the same settings", file=sys.stderr)
    if missing:
        try:
            with Stages() as stages:
                run_parts(missing, options, settings, stages)
        except KeyboardInterrupt:
            if options.again or not any(finished(name, options, settings) for name in wanted):
                raise
            raise KeyboardInterrupt(
                "Parts that were finished are kept; the same command goes on with the others."
            ) from None
    written = write_report(options.output, list(settings.parts))
    print(f"written to {written}")


def run_parts(
    names: Sequence[str], options: argparse.Namespace, settings: Settings, stages: Stages
) -> None:
    """Measure parts and write each when it is finished."""
    laboratory = Laboratory(load_shipped(), settings, stages)
    for name in names:
        start, about = time.monotonic(), {"run": now(), **describe(torch.device("cpu"))}
        laboratory.build_seconds = {}
        rows, texts = measure_part(name, laboratory)
        about |= {
            "part": name,
            "seconds": round(time.monotonic() - start, 1),
            "build_seconds": laboratory.build_seconds,
            "texts": texts,
            "settings": settings.of_part(name),
        }
        write_evaluation(rows, about, part_file(name, options))


def finished(name: str, options: argparse.Namespace, settings: Settings) -> bool:
    """Whether a part's file is there, with the same settings."""
    file = part_file(name, options)
    if not file.is_file():
        return False
    same: bool = read_evaluation(file).get("settings") == settings.of_part(name)
    return same


def part_file(name: str, options: argparse.Namespace) -> Path:
    """Where a part is written."""
    folder: Path = options.output
    return folder / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
