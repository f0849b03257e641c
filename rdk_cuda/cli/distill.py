"""`distill`: its options, and what it hands over."""

from __future__ import annotations

import argparse
from typing import Any

from ..recipes.request import Training
from .arguments import (
    Options,
    add_command,
    natural,
    output_of,
    positive,
    prepare_models,
    refuse_unknown,
    sampled,
    seed,
)

DISTILL = """\
Trains a calibrated drafter on what counts, the acceptance rate of its redistributed drafts, on text
that the target writes itself (DistillSpec, arXiv:2310.08461). Half of the held-out documents choose
the best drafter, the others measure it, and it is written only if they accept more: the interval of
the gain has to be above 0. A training that was interrupted goes on where it was when the same
command is given again."""


def add_distill(commands: Any) -> None:
    summary = "train a calibrated drafter on what the target accepts"
    parser = add_command(commands, distill, summary, DISTILL)
    options = Options(parser, Training)
    options.add_models("the target it was made for")
    options.add_out("text to choose and to measure on (every fifth of --text)")
    options.add(
        *("train", str, "PART"),
        "head: the rows of the small head; virtual-rows; all: the head and the drafter below it "
        "(%(default)s)",
    )
    losses = "of rdk_cuda.training.OverlapLoss; of several, the one that is accepted most (tv)"
    options.add_several("loss", str, "LOSS", losses)
    parser.add_argument(
        "--data",
        choices=("target", "drafter", "text"),
        default=Training.data,
        help="learn from what the target writes behind beginnings of the text, what the drafter "
        "with its full head writes, or the text itself (%(default)s)",
    )
    options.add("temperature", sampled, "T", "of use (the one calibrated for)")
    options.add_numbers(
        ("steps", natural, "of the optimizer, at most"),
        ("batch", natural, "texts of a step"),
        ("prompt", natural, "tokens of the text that each begins with"),
        ("tokens", natural, "that follow them"),
        ("draft-length", natural, "drafts a pass, where the drafter reads states"),
        ("seed", seed, "of the texts"),
    )
    options.add("learning-rate", positive, "R", "of AdamW (%(default)s)")
    options.add_device()


def distill(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then train; returns the exit code."""
    prepare_models(arguments, "rich")
    output = output_of(arguments)
    from ..recipes.stages.train.losses import LOSSES
    from ..recipes.stages.train.parts import PARTS

    refuse_unknown("--train", [arguments.train], PARTS)
    refuse_unknown("--loss", arguments.loss, LOSSES)
    from ..recipes.distill import run_distillation

    return run_distillation(Training.of(arguments, output))
