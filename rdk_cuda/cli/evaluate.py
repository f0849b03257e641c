"""`evaluate`: its options, and what it hands over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..recipes.request import Evaluation
from .arguments import (
    add_command,
    add_device,
    add_dtype,
    add_saved,
    natural,
    prepare_models,
    prepare_output,
    seed,
    temperature,
)

EVALUATE = """\
Measures a calibrated drafter on text: how much of its drafts the target accepts, compared with the
full and the pruned drafter, with 95 % intervals over documents; what the head costs; and the
speed-up that follows from the models' times on this machine. Writes evaluation.json, .csv, .png."""


def add_evaluate(commands: Any) -> None:
    summary = "what a calibrated drafter is worth on some text"
    parser = add_command(commands, evaluate, summary, EVALUATE)
    add = parser.add_argument
    add_saved(add)
    add(
        "--temperature",
        type=temperature,
        nargs="+",
        default=Evaluation.temperature,
        metavar="T",
        help="of target and drafter, 0 for greedy (the one calibrated for)",
    )
    length = Evaluation.draft_length
    add(
        "--draft-length",
        type=natural,
        default=length,
        metavar="K",
        help="drafts a pass (%(default)s)",
    )
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
    add(
        "--seed",
        type=seed,
        default=Evaluation.seed,
        metavar="N",
        help="of the intervals (%(default)s)",
    )


def evaluate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then evaluate; returns the exit code."""
    prepare_models(arguments, "matplotlib", "rich")
    prepare_output(arguments.output)
    from ..recipes.evaluate import run_evaluation

    return run_evaluation(Evaluation.of(arguments, arguments.output))
