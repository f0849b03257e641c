"""A saved drafter on text: table, files and picture."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rdk_cuda import Affinity
from rdk_cuda.calibration.drafter import FullHead, PrunedDrafter
from rdk_cuda.calibration.heads import prune_head
from rdk_cuda.calibration.methods import PRUNED, RECOMMENDED, Method
from rdk_cuda.calibration.windows import cut_windows
from rdk_cuda.integrations.saved_drafter import (
    MODEL,
    SavedDrafterError,
    load_head,
    refuse_other_model,
)

from .errors import InputError
from .evaluation import evaluate_models
from .evaluation_files import write_evaluation
from .evaluation_plots import acceptance_figure
from .evaluation_table import show_rows
from .files import write_figure
from .models import load_models, quiet
from .progress import Stages
from .text import read_documents, window_length
from .versions import versions


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
    windows = cut_windows([document.ids for document in documents], arguments.positions, length)
    methods = methods_of(models.drafter_head, drafter, str(settings.get("tuned", "")))
    with Stages() as stages:
        rows = evaluate_models(
            models,
            dict.fromkeys(arguments.temperature, methods),
            windows,
            draft_length=arguments.draft_length,
            each=stages.each,
            seed=arguments.seed,
        )
    console = Console()
    show_rows(console, rows)
    path = arguments.output / "evaluation.json"
    about = {
        "text": [{"name": document.name, "sha256": document.sha256} for document in documents],
        "versions": versions(),
        "calibration": {**settings, "figures": None},
    }
    table = write_evaluation(rows, about, path)
    picture = path.with_suffix(".png")
    write_figure(acceptance_figure(rows, "Held-out text"), picture)
    console.print(f"\n{path}, {table} and {picture} written.", soft_wrap=True, highlight=False)
    return 0


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
