"""The command lines of `python -m rdk_cuda`: each command's options, and what it hands over.

Imports nothing heavy, as arguments.py.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..pair.errors import InputError
from .arguments import (
    add_device,
    add_dtype,
    add_keep,
    add_out,
    add_saved,
    add_text,
    budget,
    gibibytes,
    natural,
    natural_or_none,
    output_of,
    positive,
    prepare_output,
    refuse_missing,
    refuse_paths_beyond_utf8,
    sampled,
    seed,
    temperature,
)
from .request import Request

CALIBRATE = """\
Prunes a drafter's vocabulary and makes up for it: reads text with target and drafter, keeps the
tokens that matter, finds virtual tokens for the rest and dynamic ones for what the context names,
and calibrates them for a temperature. Writes one directory, atomically: the drafter, its
small head, its affinity, a table of successors, and what each is worth on held-out text. With
several values of --keep or --temperature the text is read once, and the directory has one such
directory for each pair, as keep-0.25-temperature-0.7. A run that was interrupted goes on where it
was when the same command is given again.

Of a drafter with another tokenizer nothing is pruned: an affinity between the two is chosen."""

EVALUATE = """\
Measures a calibrated drafter on text: how much of its drafts the target accepts, compared with the
full and the pruned drafter, with 95 % intervals over documents; what the head costs; and the
speed-up that follows from the models' times on this machine. Writes evaluation.json, .csv, .png."""

DISTILL = """\
Trains a calibrated drafter on what counts, the acceptance rate of its redistributed drafts, on text
that the target writes itself (DistillSpec, arXiv:2310.08461). Half of the held-out documents choose
the best drafter, the others measure it, and it is written only if they accept more: the interval of
the gain has to be above 0. A training that was interrupted goes on where it was when the same
command is given again."""

INSPECT = """\
Says what an affinity does: its sizes, and how its drafter tokens reach the target's. Reads an
affinity file, or the directory of a calibrated drafter, which also says which tokens were kept."""


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], summary: str, description: str
) -> argparse.ArgumentParser:
    """A subparser for what `run` does, under its name."""
    parser: argparse.ArgumentParser = commands.add_parser(
        run.__name__, help=summary, description=description
    )
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def prepare_models(arguments: argparse.Namespace, *more: str) -> None:
    """Before models are loaded: what is not installed is named, and no network is asked for it."""
    refuse_missing(("transformers", "tokenizers", *more))
    refuse_paths_beyond_utf8(arguments)
    if arguments.device_map is not None:  # Transformers needs accelerate for nothing else here
        refuse_missing(("accelerate",), "devices")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported


def add_calibrate(commands: Any) -> None:
    """Add `calibrate` to the subparsers of `python -m rdk_cuda`."""
    summary = "prune a drafter, and find the affinity that makes up for it"
    parser = add_command(commands, calibrate, summary, CALIBRATE)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="a local Hugging Face model")
    add("--drafter", type=Path, required=True, metavar="DIR", help="its drafter")
    add_text(add)
    add_out(add)
    add(
        "--held-out",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="text to measure on (every fifth of --text, which then is not calibrated on)",
    )
    defaults = Request
    add_keep(add, defaults.keep)
    add(
        "--keep-by",
        default=defaults.keep_by,
        metavar="SCORE",
        help="keep tokens by the mean of the target's probability, by their frequency in the text, "
        "or by the variance of that probability (%(default)s)",
    )
    add(
        "--kept",
        type=Path,
        metavar="FILE",
        help="keep these target ids instead, and as always special tokens and bytes: a JSON list, "
        "a list of FR-Spec or SGLang (.pt), or an EAGLE-3 checkpoint with d2t",
    )
    for name, type_, text in (
        ("virtual", natural, "virtual tokens, at most"),
        ("dynamic", natural_or_none, "dynamic tokens of a row, at most; 0 for none"),
        ("window", natural, "how many of the last tokens of the context are recent"),
        (
            "screen-bytes",
            budget,
            "share of the pruned rows' bytes that a screen of them may read, "
            "which then offers likely ones as further dynamic tokens; 0 for none",
        ),
        ("batch", natural, "sequences that share one reading of the screen"),
        ("draft-length", natural, "drafts for each target pass, for the predicted speed-up"),
        ("positions", natural, "of the text that the models read, spread over it"),
        ("memory", gibibytes, "GiB for what is recorded of it"),
        ("seed", seed, "of samples and clusters"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        add(f"--{name}", type=type_, default=default, metavar="N", help=f"{text} (%(default)s)")
    add(
        "--draft-cost",
        type=positive,
        metavar="C",
        help="time of a drafter's pass in passes of the target; finds when drafts should end",
    )
    add(
        "--temperature",
        type=sampled,
        nargs="+",
        default=defaults.temperature,
        metavar="T",
        help="temperatures of target and drafter in use (1)",
    )
    add(
        "--recording",
        type=Path,
        metavar="FILE",
        help="keep what the models say of the text here, up to --memory GiB, and use it again: "
        "other shares, and any of its temperatures, need no further reading (a file next to --out, "
        "until that is written)",
    )
    add_device(parser)
    add_dtype(add)


def calibrate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then calibrate; returns the exit code."""
    prepare_models(arguments, "sklearn", "rich")
    output = output_of(arguments)
    from ..calibration import SCORES

    if arguments.keep_by not in SCORES:
        raise InputError(f"--keep-by {arguments.keep_by}: needs one of {', '.join(SCORES)}")
    chosen = tuple(arguments.keep), arguments.keep_by
    if arguments.kept is not None and chosen != (Request.keep, Request.keep_by):
        raise InputError(
            f"--kept {arguments.kept}: names the tokens to keep; leave out --keep and --keep-by"
        )
    if arguments.screen_bytes and not arguments.dynamic:
        raise InputError(
            f"--screen-bytes {arguments.screen_bytes:g}: what a screen offers are dynamic tokens, "
            "and --dynamic is 0; leave one of them out"
        )
    from .calibrate import run_calibration

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name not in ("run", "prog", "out")
    }
    return run_calibration(Request(output=output, **given))


def add_evaluate(commands: Any) -> None:
    """Add `evaluate` to the subparsers of `python -m rdk_cuda`."""
    summary = "what a calibrated drafter is worth on some text"
    parser = add_command(commands, evaluate, summary, EVALUATE)
    add = parser.add_argument
    add_saved(add)
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


def evaluate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then evaluate; returns the exit code."""
    prepare_models(arguments, "matplotlib", "rich")
    prepare_output(arguments.output)
    from .evaluate import run_evaluation

    return run_evaluation(arguments)


def add_distill(commands: Any) -> None:
    """Add `distill` to the subparsers of `python -m rdk_cuda`."""
    summary = "train a calibrated drafter on what the target accepts"
    parser = add_command(commands, distill, summary, DISTILL)
    add = parser.add_argument
    add_saved(add)
    add_out(add)
    add(
        "--held-out",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="text to choose and to measure on (every fifth of --text)",
    )
    add(
        "--train",
        default="head",
        metavar="PART",
        help="head: the rows of the small head; virtual-rows; lifted-rows: their map; all: the "
        "head and the drafter below it (%(default)s)",
    )
    add(
        "--loss",
        nargs="+",
        default=("tv",),
        metavar="LOSS",
        help="of rdk_cuda.training.OverlapLoss; of several, the one that is accepted most (tv)",
    )
    add(
        "--data",
        choices=("target", "drafter", "text"),
        default="target",
        help="learn from what the target writes behind beginnings of the text, what the drafter "
        "with its full head writes, or the text itself (%(default)s)",
    )
    add("--temperature", type=sampled, metavar="T", help="of use (the one calibrated for)")
    for name, type_, default, text in (
        ("steps", natural, 200, "of the optimizer, at most"),
        ("batch", natural, 8, "texts of a step"),
        ("prompt", natural, 64, "tokens of the text that each begins with"),
        ("tokens", natural, 128, "that follow them"),
        ("draft-length", natural, 4, "drafts a pass, where the drafter reads states"),
        ("seed", seed, 0, "of the texts"),
    ):
        add(f"--{name}", type=type_, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--learning-rate", type=positive, default=3e-4, metavar="R", help="of AdamW (%(default)s)")
    add_device(parser)
    add_dtype(add)


def distill(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then train; returns the exit code."""
    prepare_models(arguments, "rich")
    arguments.out = output_of(arguments)
    from ..training import LOSSES, PARTS

    refuse_unknown("--train", [arguments.train], PARTS)
    refuse_unknown("--loss", arguments.loss, LOSSES)
    from .distill import run_distillation

    return run_distillation(arguments)


def refuse_unknown(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a value that is none of these."""
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"{option} {unknown[0]}: needs one of {', '.join(known)}")


def add_inspect(commands: Any) -> None:
    """Add `inspect` to the subparsers of `python -m rdk_cuda`."""
    parser = add_command(commands, inspect, "what an affinity does, in words", INSPECT)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="an affinity file or a calibrated drafter"
    )


def inspect(arguments: argparse.Namespace) -> int:
    """Read the files and print; returns the exit code."""
    path: Path = arguments.file
    if not path.exists():
        raise InputError(f"{path}: no such file; needs an affinity file or a calibrated drafter")
    refuse_missing(("transformers",) if path.is_dir() else ())
    from .inspect import run_inspection

    return run_inspection(path)
