"""The pair and the training of `python -m rdk_cuda.labs.steering`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ...decoding.models import Read
from ...drafter import FullHead, PrunedDrafter, SavedDrafterError
from ...integrations.huggingface.saved_drafter import STEERING, read_pruned
from ...recipes.distill import Train
from ...recipes.errors import InputError
from ...recipes.inputs.pairs import ModelPair
from ...recipes.request import Command, Training
from ...recipes.saved import pair_for
from ...recipes.stages.stage import State
from ...recipes.stages.train.parts import TrainedRows
from .saved import save_steered
from .steering import Steering, steered_read

STEERED = "steering"  # beside the parts of `rdk_cuda.training`


@dataclass(frozen=True)
class SteeredPair(ModelPair):
    """Add what steers the drafter by the target's states to two language models."""

    steering: Steering = field(kw_only=True)

    def read(self, draft_length: int) -> Read:
        return steered_read(self.target, self.drafter, self.steering, draft_length)

    def drafts_every(self, draft_length: int) -> int:
        return draft_length


def load_pair_of(
    request: Command,
) -> tuple[SteeredPair, PrunedDrafter, dict[str, Any]]:
    """Load the pair, what its drafter was pruned to, and settings; new steering if it has none."""
    path = request.drafter / STEERING
    try:
        drafter, settings = read_pruned(request.drafter)
        models = pair_for(request, drafter)
        if not isinstance(models, ModelPair):
            raise TypeError("reads the target's states already; needs a language model")
        if os.path.lexists(path):
            steering = Steering.load(path)
            steering.check(f"{path}", models.drafter, models.target)
        else:
            steering = Steering.between(models.target, models.drafter)
    except (SavedDrafterError, TypeError) as error:
        raise InputError(f"{request.drafter}: {error}") from error
    return (
        SteeredPair(**vars(models), steering=steering.to(models.target.device)),
        drafter,
        settings,
    )


def loaded(request: Training) -> tuple[SteeredPair, SteeredTrain]:
    """Load the pair, and the stage that trains it."""
    models, drafter, settings = load_pair_of(request)
    models.steering.float().requires_grad_(request.train == STEERED)
    if models.target.device.type != "cpu":
        drafter, _ = read_pruned(request.drafter, device=models.target.device)
    drafter = drafter.in_dtype(getattr(torch, request.dtype))
    return models, SteeredTrain(drafter, settings, steering=models.steering)


@dataclass(frozen=True)
class SteeredTrain(Train):
    """Train the steering, or another part of a drafter that has one."""

    steering: Steering = field(kw_only=True)

    def body(self, state: State[Training]) -> list[torch.nn.Parameter]:
        if state.request.train == STEERED:
            return list(self.steering.parameters())
        return super().body(state)

    def _parts(self, state: State[Training], full_head: FullHead) -> TrainedRows:
        if state.request.train == STEERED:  # and no row of the head
            return TrainedRows(self.drafter, full_head, first=self.drafter.affinity.draft_size)
        return super()._parts(state, full_head)

    def _read(self, state: State[Training]) -> Read:
        super()._read(state)  # says which parameters get gradients
        given, models = state.request, state.models
        pair = models.target, models.drafter, self.steering
        return steered_read(*pair, given.draft_length, prompt_length=given.prompt)

    def _write(
        self, state: State[Training], drafter: PrunedDrafter, settings: dict[str, Any]
    ) -> None:
        given, models = state.request, state.models
        parts = models.saved_drafter, models.tokenizer, drafter, settings, self.steering
        save_steered(given.output, *parts, overwrite=given.overwrite)
