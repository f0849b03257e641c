"""A new kind of drafter is one class: which states are read, and how its head is applied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rdk_cuda.__main__ import main
from rdk_cuda.decoding.models import Read, Reading
from rdk_cuda.drafter import FullHead
from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned
from rdk_cuda.recipes.inputs import loading
from rdk_cuda.recipes.inputs.pairs import Pair

from .calibrating import command, settings_of
from .conftest import Desk


class EarlyExit(Pair):
    """Drafts from the states below the drafter's last layer, by its own head without a bias."""

    def read(self, draft_length: int) -> Read:
        @torch.no_grad()
        def read(ids: Tensor) -> Reading:
            states = self.drafter(ids, output_hidden_states=True).hidden_states[-2]
            return Reading(self.target(ids).logits, states)

        return read

    @property
    def drafter_head(self) -> FullHead:
        return self.drafter.lm_head.weight.detach().float(), None


def test_a_new_kind_of_drafter_is_one_class(desk: Desk) -> None:
    """Every stage works on it, and so do measuring and saving."""

    load_pair = loading.load_pair

    def load(*given: Any, **options: Any) -> Pair:
        return EarlyExit(**vars(load_pair(*given, **options)))

    desk.patch.setattr(loading, "load_pair", load)
    out = desk.out
    assert main(command(desk.pair, desk.texts, out, "--draft-cost", 0.1)) == 0
    settings = settings_of(out)
    full, pruned, chosen = settings["figures"]
    assert 0 < pruned["acceptance"] < full["acceptance"]
    assert pruned["acceptance"] <= chosen["acceptance"]
    assert settings["drafts"]["gain"] >= 1
    assert load_pruned(out)[0].vocabulary.draft_size == 300
