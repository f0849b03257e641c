"""A steered drafter's directory: that of any saved drafter, with `steering.safetensors` in it."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ...drafter import PrunedDrafter
from ...integrations.huggingface import saved_drafter as core
from ...integrations.huggingface.generate import Generate
from ...integrations.huggingface.saved_drafter import STEERING
from .steering import SteeredModel, Steering


def save_steered(
    directory: str | PathLike[str],
    model: Any,
    tokenizer: Any,
    drafter: PrunedDrafter,
    settings: Mapping[str, Any],
    steering: Steering,
    *,
    overwrite: bool = False,
) -> None:
    """Write a directory that `load_steered` reads, atomically; as `save_drafter`."""
    steering.check("save_steered", model)
    with core.written_whole(Path(directory), overwrite) as unfinished:
        core.save_drafter(unfinished, model, tokenizer, drafter, settings, overwrite=True)
        steering.save(unfinished / STEERING)


def load_steered(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[Any, PrunedDrafter, dict[str, Any], Steering]:
    """Read what `save_steered` wrote: what `load_drafter` returns, and the steering.

    Raises:
        SavedDrafterError, OSError: as `load_drafter`.
    """
    path = Path(directory)
    drafter, settings = core.read_pruned(path, device=device)
    model = core.load_model(path / core.MODEL).to(device)
    core.refuse_other_model(f"load_steered: {path / core.MODEL}", model, drafter)
    steering = Steering.load(path / STEERING, device)
    steering.check(f"load_steered: {path / STEERING}", model)
    return model, drafter, settings, steering


def generate_from(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu", **options: Any
) -> Generate:
    """Make what `Generate.from_directory` makes of a drafter that is not steered."""
    model, pruned, settings, steering = load_steered(directory, device=device)
    own = {"dynamic_tokens": pruned.dynamic_tokens, "vocabulary": pruned.vocabulary}
    own |= core.calibrated_drafts(settings)
    drafter = SteeredModel(model, steering, head=pruned.weight, head_bias=pruned.bias)
    return Generate(drafter, pruned.affinity, **{**own, **options})
