"""A calibrated drafter from its directory, with its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..drafter import PrunedDrafter, SavedDrafterError
from ..integrations.huggingface.saved_drafter import (
    MODEL,
    SETTINGS,
    load_pruned,
    refuse_other_model,
)
from ..integrations.huggingface.text_drafter import is_text_drafter, load_affinity
from .errors import InputError
from .inputs.loading import load_models
from .inputs.pairs import Pair, StatePair, TextPair, head_size
from .request import Command
from .stages.pruning import PRUNED, RECOMMENDED, Method
from .stages.tokenizers import COUNTS, LEVEL, token_level_methods


def load_saved(request: Command) -> tuple[Pair, list[Method], dict[str, Any]]:
    """Load a pair, the methods that `evaluate` compares, and the settings of the calibration."""
    if is_text_drafter(request.drafter):
        return load_saved_text(request)
    models, drafter, settings = load_calibrated(request)
    return models, methods_of(models, drafter, str(settings.get("tuned", ""))), settings


def load_calibrated(request: Command) -> tuple[Pair, PrunedDrafter, dict[str, Any]]:
    try:
        drafter, settings = load_pruned(request.drafter)
        models = pair_for(request, drafter)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    if isinstance(models, StatePair):
        models = replace(models, lifted=drafter.lifted)
    return models, drafter, settings


def pair_for(request: Command, drafter: PrunedDrafter) -> Pair:
    models = load_models(request, request.drafter / MODEL)
    refuse_other_model(f"{request.drafter / MODEL}", models.drafter, drafter)
    return models


def load_saved_text(request: Command) -> tuple[Pair, list[Method], dict[str, Any]]:
    directory: Path = request.drafter
    try:
        affinity, settings = load_affinity(directory)
    except SavedDrafterError as error:
        raise InputError(error.reason) from error
    models = load_models(request, directory / MODEL, one_tokenizer=False)
    sizes = [affinity.target_size, affinity.draft_size]
    got = [head_size(models.target), head_size(models.drafter)]
    if not isinstance(models, TextPair) or got != sizes:
        raise InputError(
            f"{directory}: leads from a drafter's {sizes[1]} tokens to the {sizes[0]} of another "
            f"tokenizer, and the models predict {got[1]} and {got[0]}; needs its own target"
        )
    name = str(settings.get("method", COUNTS))
    name = name if name in LEVEL else COUNTS
    return models, token_level_methods(models, affinity, name), settings


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
    full_head, vocabulary = models.drafter_head, drafter.vocabulary
    keep = vocabulary.draft_size / vocabulary.target_size
    return [
        Method.whole(models),
        Method(PRUNED, keep, PrunedDrafter.plain(full_head, vocabulary)),
        Method(RECOMMENDED, keep, drafter.in_dtype(full_head[0].dtype), tuned),
    ]
