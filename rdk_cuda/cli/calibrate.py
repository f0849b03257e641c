"""`calibrate`: its options, and what it hands over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..recipes.errors import InputError
from ..recipes.request import Request
from .arguments import (
    Options,
    add_command,
    budget,
    gibibytes,
    natural,
    natural_or_none,
    output_of,
    positive,
    prepare_models,
    refuse_unknown,
    sampled,
    seed,
    share,
)

CALIBRATE = """\
Prunes a drafter's vocabulary and makes up for it: reads text with target and drafter, keeps the
tokens that matter, finds virtual tokens for the rest and dynamic ones for what the context names,
and calibrates them for a temperature. Writes one directory, atomically: the drafter, its
small head, its affinity, a table of successors, and what each is worth on held-out text. With
several values of --keep or --temperature the text is read once, and the directory has one such
directory for each pair, as keep-0.25-temperature-0.7. A run that was interrupted goes on where it
was when the same command is given again.

With --drafter mtp the drafter is the target's own multi-token head (Qwen3.5, DeepSeek V3, GLM-4.5).
Of a drafter with another tokenizer nothing is pruned: an affinity between the two is chosen."""


def add_calibrate(commands: Any) -> None:
    summary = "prune a drafter, and find the affinity that makes up for it"
    options = Options(add_command(commands, calibrate, summary, CALIBRATE), Request)
    drafter = "its drafter; mtp: the multi-token head in its files"
    options.add_models("a local Hugging Face model", drafter)
    options.add_out(
        "text to measure on (every fifth of --text, which then is not calibrated on)",
    )
    keeps = "shares of the vocabulary that pruned drafters keep (0.25)"
    options.add_several("keep", share, "SHARE", keeps)
    options.add(
        *("keep-by", str, "SCORE"),
        "keep tokens by the mean of the target's probability, or by their frequency in the text "
        "(%(default)s)",
    )
    options.add(
        *("kept", Path, "FILE"),
        "keep these target ids instead, and as always special tokens and bytes: a JSON list, "
        "a list of FR-Spec or SGLang (.pt), or an EAGLE-3 checkpoint with d2t",
    )
    options.add_numbers(
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
    )
    options.add(
        *("draft-cost", positive, "C"),
        "time of a drafter's pass in passes of the target; finds when drafts should end",
    )
    temperatures = "temperatures of target and drafter in use (1)"
    options.add_several("temperature", sampled, "T", temperatures)
    options.add(
        *("recording", Path, "FILE"),
        "keep what the models say of the text in this folder, at most 4 bytes for each token "
        "of the vocabulary at each of --positions and in all --memory GiB, and use it again: other "
        "shares, and any of its temperatures, need no further reading (a folder next to --out, "
        "until that is written)",
    )
    options.add_device()


def calibrate(arguments: argparse.Namespace) -> int:
    """Check what can be checked at once, then calibrate; returns the exit code."""
    prepare_models(arguments, "sklearn", "rich")
    output = output_of(arguments)
    from ..recipes.stages.kept_tokens import SCORES

    refuse_unknown("--keep-by", [arguments.keep_by], SCORES)
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
    from ..recipes.calibrate import run_calibration

    return run_calibration(Request.of(arguments, output))
