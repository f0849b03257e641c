"""A saved drafter on text: table, files and picture."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rdk_cuda import Affinity
from rdk_cuda.calibration.drafter import FullHead, PrunedDrafter
from rdk_cuda.calibration.heads import prune_head
from rdk_cuda.calibration.methods import PRUNED, RECOMMENDED, Method
from rdk_cuda.calibration.recording.windows import Window, cut_windows
from rdk_cuda.integrations.huggingface.saved_directory import SETTINGS
from rdk_cuda.integrations.huggingface.saved_drafter import (
    MODEL,
    SavedDrafterError,
    load_head,
    refuse_other_model,
)

from ..evaluation.plots import acceptance_figure
from ..evaluation.rows import write_evaluation
from ..evaluation.table import counted, show_notes, show_rows
from ..files import write_figure
from .documents import (
    HELD_OUT_POSITIONS,
    Document,
    positions_of_all,
    read_documents,
    window_length,
)
from .errors import InputError
from .models import evaluate_pair, load_models, quiet, same_weights
from .progress import Stages
from .versions import versions

NAMED = 3  # documents, of those that were left out


def evaluate_saved(arguments: argparse.Namespace) -> int:
    """Measure, print and write; returns the exit code."""
    quiet()
    directory: Path = arguments.drafter
    try:
        drafter, settings = load_head(directory)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    except OSError as error:
        raise InputError(str(error)) from error
    models = load_models(arguments.target, directory / MODEL, arguments.device)
    try:
        refuse_other_model(f"{directory / MODEL}", models.drafter, drafter)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    documents = read_documents(models.tokenizer, arguments.text)
    length = window_length(documents, models.context, arguments.draft_length)
    positions = arguments.positions or positions_of_all(documents, length, HELD_OUT_POSITIONS)
    windows = cut_windows([document.ids for document in documents], positions, length)
    calibrated_for = calibrated_temperature(directory, settings)
    methods = methods_of(models.drafter_head, drafter, str(settings.get("tuned", "")))
    with Stages() as stages:
        rows = evaluate_pair(
            models,
            dict.fromkeys(arguments.temperature or [calibrated_for], methods),
            windows,
            draft_length=arguments.draft_length,
            each=stages.each,
            seed=arguments.seed,
        )
    console = Console()
    measured = what_was_measured(documents, windows, length)
    same_target = same_weights(settings.get("target_weights"), models.target)
    about_text = " ".join([*left_out(measured), *other_target(same_target, arguments.target)])
    show_rows(console, rows, calibrated_for)
    console.print()
    show_notes(console, rows, about_text)
    path = arguments.output / "evaluation.json"
    about = {
        "text": [{"name": document.name, "sha256": document.sha256} for document in documents],
        "measured": measured,
        "calibrated_target": same_target,
        "versions": versions(),
        "calibration": {**settings, "figures": None, "target_weights": None},
    }
    table = write_evaluation(rows, about, path)
    picture = path.with_suffix(".png")
    write_figure(acceptance_figure(rows, "Held-out text"), picture)
    console.print(f"\n{path}, {table} and {picture} written.", soft_wrap=True, highlight=False)
    return 0


def calibrated_temperature(directory: Path, settings: Mapping[str, Any]) -> float:
    """The temperature that the offsets and the kept tokens are for; 1 where none is named."""
    said = settings.get("temperature", 1.0)
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said < math.inf:
        raise InputError(
            f"{directory / SETTINGS}: temperature is {said!r}; needs a number, 0 or more: "
            "calibrate again"
        )
    return float(said)


def what_was_measured(
    documents: Sequence[Document], windows: Sequence[Window], length: int
) -> dict[str, Any]:
    """How much of the text that was given."""
    return {
        "positions": length * len(windows),
        "positions_given": sum(len(document.ids) for document in documents),
        "windows": len(windows),
        "window_length": length,
        "documents": len({window.document for window in windows}),
        "documents_given": len(documents),
        "documents_too_short": [each.name for each in documents if len(each.ids) < length],
    }


def left_out(measured: Mapping[str, Any]) -> list[str]:
    """What share of the text was measured, and which documents were not."""
    share = measured["positions"] / measured["positions_given"]
    sentences = [
        f"That is {share:.0%} of the {measured['positions_given']} positions of "
        f"{counted(measured['documents_given'], 'document')} given."
    ]
    if short := measured["documents_too_short"]:
        names = ", ".join(short[:NAMED]) + (", ..." if len(short) > NAMED else "")
        sentences.append(
            f"{len(short)} of them left out, shorter than the {measured['window_length']} tokens "
            f"that are read at once: {names}."
        )
    others = measured["documents_given"] - measured["documents"] - len(short)
    if others:
        sentences.append(f"{others} more left out for --positions; the default measures in all.")
    return sentences


def other_target(same: bool | None, target: Path) -> list[str]:
    """A warning where the affinity was made for another target than this one."""
    if same is None:
        return ["It was not recorded which target this was calibrated for."]
    if same:
        return []
    return [
        f"Not the target that this was calibrated for: the weights in {target} are others. The "
        "figures are those of drafting for it all the same; calibrate for it to do better."
    ]


def methods_of(full_head: FullHead, drafter: PrunedDrafter, tuned: str) -> list[Method]:
    """The full drafter, the plainly pruned one, and the saved one, `tuned` in words."""
    vocabulary = drafter.vocabulary
    keep = vocabulary.draft_size / vocabulary.target_size
    plain = PrunedDrafter(
        vocabulary, Affinity.intersection(vocabulary), *prune_head(*full_head, vocabulary)
    )
    dtype = full_head[0].dtype
    bias = None if drafter.bias is None else drafter.bias.to(dtype)
    saved = replace(drafter, weight=drafter.weight.to(dtype), bias=bias)
    return [
        Method.full(full_head),
        Method(PRUNED, keep, plain),
        Method(RECOMMENDED, keep, saved, tuned),
    ]
