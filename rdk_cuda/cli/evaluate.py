"""The command line of `evaluate`. Nothing heavy is imported before it is read."""

import argparse
import os
from pathlib import Path
from typing import Any

from .arguments import (
    add_device,
    add_dtype,
    natural,
    number,
    prepare_output,
    refuse_missing,
    refuse_missing_accelerate,
    seed,
)

REQUIRED = ("transformers", "tokenizers", "matplotlib", "rich")

DESCRIPTION = """\
Measures a calibrated drafter on text: how much of its drafts the target accepts, compared with the
full and the pruned drafter, with 95 % intervals over documents; what the head costs; and the
speed-up that follows from the models' times on this machine. Writes evaluation.json, .csv, .png."""

temperature = number(float, lambda value: 0 <= value < 1e6, "a temperature, 0 for greedy")


def add_command(commands: Any) -> None:
    """Add `evaluate` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "evaluate",
        help="what a calibrated drafter is worth on some text",
        description=DESCRIPTION,
    )
    parser.set_defaults(run=run, prog=parser.prog)
    add = parser.add_argument
    add("drafter", type=Path, metavar="DIR", help="what `calibrate` wrote")
    add("--target", type=Path, required=True, metavar="DIR", help="the target it was made for")
    add(
        "--text", type=Path, nargs="+", required=True, metavar="FILE", help="UTF-8, each a document"
    )
    add(
        "--temperature",
        type=temperature,
        nargs="+",
        metavar="T",
        help="of target and drafter, 0 for greedy (the one calibrated for)",
    )
    add("--draft-length", type=natural, default=4, metavar="K", help="drafts a pass (%(default)s)")
    add(
        "--positions",
        type=natural,
        metavar="N",
        help="to measure at, spread over the documents "
        "(8192, or more, so that every document has a window of them)",
    )
    add(
        "--output",
        type=Path,
        default=Path("evaluation"),
        metavar="DIR",
        help="where the results go (%(default)s)",
    )
    add_device(parser)
    add_dtype(add)
    add("--seed", type=seed, default=0, metavar="N", help="of the intervals (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then evaluate; returns the exit code."""
    refuse_missing(REQUIRED)
    refuse_missing_accelerate(arguments)
    prepare_output(arguments.output)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from .evaluation import run_evaluation

    return run_evaluation(arguments)
