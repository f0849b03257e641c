"""`evaluate`, step by step: a saved drafter on text, as a table, files and a picture."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

import rdk_cuda
from rdk_cuda.calibration import PRUNED, RECOMMENDED, Method, Window
from rdk_cuda.calibration.tokenizers import COUNTS, LEVEL
from rdk_cuda.drafter import PrunedDrafter, SavedDrafterError
from rdk_cuda.integrations.huggingface.saved_drafter import (
    MODEL,
    SETTINGS,
    load_pruned,
    refuse_other_model,
)
from rdk_cuda.integrations.huggingface.text_drafter import is_text_drafter, load_affinity

from ..evaluation.plots import acceptance_figure
from ..evaluation.rows import EvaluationError, Row, evaluate, write_evaluation
from ..evaluation.table import counted, show_notes, show_rows
from ..files import write_figure
from ..pair.documents import Text, first_token, read_documents, window_length
from ..pair.errors import InputError
from ..pair.loading import load_pair, quiet, same_weights
from ..pair.pairs import Pair, StatePair, head_size
from ..pair.text_pair import TextPair
from .progress import Stages

NAMED = 3  # documents, of those that were left out


def run_evaluation(arguments: argparse.Namespace) -> int:
    """Measure, print and write; returns the exit code."""
    quiet()
    return report(arguments, *load_saved(arguments))


def report(
    arguments: argparse.Namespace, models: Pair, methods: Sequence[Method], settings: dict[str, Any]
) -> int:
    """Measure what was loaded, print and write; returns the exit code."""
    documents = read_documents(models.tokenizer, arguments.text)
    length = window_length(documents, models.context, arguments.draft_length)
    text = Text(documents, length, first_token(models.tokenizer))
    windows = text.held_out_windows(arguments.positions)
    calibrated_for = calibrated_temperature(arguments.drafter, settings)
    with Stages() as stages:
        rows = evaluate_pair(
            models,
            dict.fromkeys(arguments.temperature or [calibrated_for], methods),
            windows,
            arguments.draft_length,
            arguments.seed,
            stages,
        )
    console = Console()
    measured = what_was_measured(text, windows)
    same_target = same_weights(settings.get("target_weights"), models.target)
    about_text = " ".join([*left_out(measured), *other_target(same_target, arguments.target)])
    show_rows(console, rows, calibrated_for)
    console.print()
    show_notes(console, rows, about_text)
    path = arguments.output / "evaluation.json"
    about = {
        "text": text.sources,
        "measured": measured,
        "calibrated_target": same_target,
        "versions": versions(),
        "calibration": {**settings, "figures": None, "target_weights": None},
    }
    table = write_evaluation(rows, about, path)
    picture = path.with_suffix(".png")
    write_figure(acceptance_figure(rows, "Held-out text"), picture)
    written = f"\n{path}, {table} and {picture} written."
    console.print(written, soft_wrap=True, highlight=False, markup=False)
    return 0


def load_saved(arguments: argparse.Namespace) -> tuple[Pair, list[Method], dict[str, Any]]:
    """The target and the full drafter, what is measured of it, the settings of its calibration."""
    if is_text_drafter(arguments.drafter):
        return load_saved_text(arguments)
    models, drafter, settings = load_calibrated(arguments)
    return models, methods_of(models, drafter, str(settings.get("tuned", ""))), settings


def load_calibrated(arguments: argparse.Namespace) -> tuple[Pair, PrunedDrafter, dict[str, Any]]:
    """The target and the full drafter, what it was pruned to, and the settings."""
    try:
        drafter, settings = load_pruned(arguments.drafter)
        models = pair_for(arguments, drafter)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    if isinstance(models, StatePair):
        models = replace(models, lifted=drafter.lifted)
    return models, drafter, settings


def pair_for(arguments: argparse.Namespace, drafter: PrunedDrafter) -> Pair:
    """Load the target, and the full drafter of what was pruned to this."""
    path, dtype = arguments.drafter / MODEL, getattr(torch, arguments.dtype)
    models = load_pair(arguments.target, path, arguments.device, dtype, arguments.device_map)
    refuse_other_model(f"{path}", models.drafter, drafter)
    return models


def load_saved_text(
    arguments: argparse.Namespace,
) -> tuple[Pair, list[Method], dict[str, Any]]:
    """The same of a drafter with another tokenizer."""
    directory: Path = arguments.drafter
    try:
        affinity, settings = load_affinity(directory)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    models = load_pair(
        arguments.target,
        directory / MODEL,
        arguments.device,
        getattr(torch, arguments.dtype),
        arguments.device_map,
        one_tokenizer=False,
    )
    sizes = [affinity.target_size, affinity.draft_size]
    got = [head_size(models.target), head_size(models.drafter)]
    if not isinstance(models, TextPair) or got != sizes:
        raise InputError(
            f"{directory}: leads from a drafter's {sizes[1]} tokens to the {sizes[0]} of another "
            f"tokenizer, and the models predict {got[1]} and {got[0]}; needs its own target"
        )
    name = str(settings.get("method", COUNTS))
    return models, models.methods(affinity, name if name in LEVEL else COUNTS), settings


def calibrated_temperature(directory: Path, settings: Mapping[str, Any]) -> float:
    """The temperature that the offsets and the kept tokens are for; 1 if none is named."""
    said = settings.get("temperature", 1.0)
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said < 1e6:
        raise InputError(
            f"{directory / SETTINGS}: temperature is {said!r}; needs a number, 0 or more: "
            "calibrate again"
        )
    return float(said)


def methods_of(models: Pair, drafter: PrunedDrafter, tuned: str) -> list[Method]:
    """The full drafter, the pruned one, and the saved one, `tuned` in words."""
    full_head, vocabulary = models.drafter_head, drafter.vocabulary
    keep = vocabulary.draft_size / vocabulary.target_size
    return [
        models.whole,
        Method(PRUNED, keep, PrunedDrafter.plain(full_head, vocabulary)),
        Method(RECOMMENDED, keep, drafter.in_dtype(full_head[0].dtype), tuned),
    ]


def what_was_measured(text: Text, windows: Sequence[Window]) -> dict[str, Any]:
    """How much of the given text."""
    return {
        "positions": text.length * len(windows),
        "positions_given": sum(map(len, text.ids)),
        "windows": len(windows),
        "window_length": text.length,
        "documents": len({window.document for window in windows}),
        "documents_given": len(text.documents),
        "documents_too_short": text.too_short,
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
    """A warning if the drafter was calibrated for a target other than this one."""
    if same is None:
        return ["It was not recorded which target this was calibrated for."]
    if same:
        return []
    return [
        f"Not the target that this was calibrated for: the weights in {target} are different. The "
        "figures are still those of drafting for it; calibrate for it to do better."
    ]


def evaluate_pair(
    models: Pair,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    draft_length: int,
    seed: int,
    stages: Stages,
) -> list[Row]:
    """`rdk_cuda.evaluation.evaluate` with the pair's times; NaN is what the models made it."""
    try:
        return evaluate(
            models.read(draft_length),
            models.drafter_head,
            methods,
            windows,
            draft_length=draft_length,
            drafts_every=models.drafts_every(draft_length),
            times=models.times(windows[0].ids[: -draft_length - 1], draft_length),
            head_dtype=models.drafter_dtype,
            each=stages.each,
            seed=seed,
        )
    except EvaluationError as error:
        raise InputError(str(error)) from error


def versions() -> dict[str, Any]:
    """Versions, machine, threads, and how the operators were built."""
    return {
        "rdk_cuda": rdk_cuda.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "build": rdk_cuda.build_info(),
    }
