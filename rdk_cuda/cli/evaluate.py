"""`evaluate`: its options, and what it hands over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..recipes.request import Evaluation
from .arguments import (
    Options,
    add_command,
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
    options = Options(add_command(commands, evaluate, summary, EVALUATE), Evaluation)
    options.add_models("the target it was made for")
    temperatures = "of target and drafter, 0 for greedy (the one calibrated for)"
    options.add_several("temperature", temperature, "T", temperatures)
    options.add("draft-length", natural, "K", "drafts a pass (%(default)s)")
    options.add(
        *("positions", natural, "N"),
        "to measure at, spread over the documents "
        "(8192, or more, so that every document has a window of them)",
    )
    where = "where the results go (%(default)s)"
    options.add("output", Path, "DIR", where, default=Path("evaluation"))
    options.add_device()
    options.add_numbers(("seed", seed, "of the intervals"))


def evaluate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then evaluate; returns the exit code."""
    prepare_models(arguments, "matplotlib", "rich")
    prepare_output(arguments.output)
    from ..recipes.evaluate import run_evaluation

    return run_evaluation(Evaluation.of(arguments, arguments.output))
