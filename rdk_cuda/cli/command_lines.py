"""The command lines of `python -m rdk_cuda`. Nothing heavy is imported before they are read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..pair.errors import InputError
from .arguments import (
    add_device,
    add_dtype,
    add_keep,
    natural,
    natural_or_none,
    number,
    positive,
    prepare_output,
    refuse_missing,
    refuse_missing_accelerate,
    seed,
)
from .request import Request

budget = number(float, lambda value: 0 <= value <= 1, "a share from 0 to 1, as 0.05")
gibibytes = number(float, lambda value: 0 < value <= 2**20, "GiB, above 0")
temperature = number(float, lambda value: 0 <= value < 1e6, "a temperature, 0 for greedy")

CALIBRATE = """\
Prunes a drafter's vocabulary and makes up for it: reads text with target and drafter, keeps the
tokens that matter, finds virtual tokens for the rest and dynamic ones for what the context names,
and calibrates them for a temperature. Writes one directory, whole or not at all: the drafter, its
small head, its affinity, a table of successors, and what each is worth on held-out text. With
several values of --keep or --temperature the text is read once, and the directory has one such
directory for each pair, as keep-0.25-temperature-0.7. A run that was interrupted goes on where it
was when the same command is given again."""

EVALUATE = """\
Measures a calibrated drafter on text: how much of its drafts the target accepts, compared with the
full and the pruned drafter, with 95 % intervals over documents; what the head costs; and the
speed-up that follows from the models' times on this machine. Writes evaluation.json, .csv, .png."""

INSPECT = """\
Says what an affinity does: its sizes, and how its drafter tokens reach the target's. Reads an
affinity file, or the directory of a calibrated drafter, which also says which tokens were kept."""


def add_calibrate(commands: Any) -> None:
    """Add `calibrate` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "calibrate",
        help="prune a drafter, and find the affinity that makes up for it",
        description=CALIBRATE,
    )
    parser.set_defaults(run=calibrate, prog=parser.prog)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="DIR", help="a local Hugging Face model")
    add("--drafter", type=Path, required=True, metavar="DIR", help="its drafter, same tokenizer")
    add(
        "--text", type=Path, nargs="+", required=True, metavar="FILE", help="UTF-8, each a document"
    )
    add("--out", type=Path, required=True, metavar="DIR", help="what to write; must not exist")
    add("--overwrite", action="store_true", help="replace what an earlier calibration wrote there")
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
        help="keep these target ids instead, and as always special tokens and bytes: text with one "
        "a line, JSON, .npy, a list of FR-Spec or SGLang (.pt), or an EAGLE-3 checkpoint with d2t",
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
        "--temperature",
        type=positive,
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
    refuse_missing(("transformers", "tokenizers", "sklearn", "rich"))
    refuse_missing_accelerate(arguments)
    output = Path(os.path.abspath(arguments.out))  # a name of its own, even for "." and ".."
    if os.path.lexists(output) and not arguments.overwrite:
        raise InputError(
            f"--out {output}: exists; name another directory, or --overwrite an earlier calibration"
        )
    if not output.parent.is_dir():
        raise InputError(f"--out {output}: {output.parent} is no directory; make it first")
    from ..calibration import SCORES

    if arguments.keep_by not in SCORES:
        raise InputError(f"--keep-by {arguments.keep_by}: needs one of {', '.join(SCORES)}")
    if arguments.kept is not None and len(set(arguments.keep)) > 1:
        raise InputError(
            f"--kept {arguments.kept}: names the tokens to keep, and --keep several shares; give "
            "one of them"
        )
    if arguments.screen_bytes and not arguments.dynamic:
        raise InputError(
            f"--screen-bytes {arguments.screen_bytes:g}: what a screen offers are dynamic tokens, "
            "and --dynamic is 0; leave one of them out"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from .calibrate import run_calibration

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name not in ("run", "prog", "out")
    }
    return run_calibration(Request(output=output, **given))


def add_evaluate(commands: Any) -> None:
    """Add `evaluate` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "evaluate",
        help="what a calibrated drafter is worth on some text",
        description=EVALUATE,
    )
    parser.set_defaults(run=evaluate, prog=parser.prog)
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


def evaluate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then evaluate; returns the exit code."""
    refuse_missing(("transformers", "tokenizers", "matplotlib", "rich"))
    refuse_missing_accelerate(arguments)
    prepare_output(arguments.output)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from .evaluate import run_evaluation

    return run_evaluation(arguments)


def add_inspect(commands: Any) -> None:
    """Add `inspect` to the subparsers of `python -m rdk_cuda`."""
    parser = commands.add_parser(
        "inspect", help="what an affinity does, in words", description=INSPECT
    )
    parser.set_defaults(run=inspect, prog=parser.prog)
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
