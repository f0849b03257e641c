"""The decoder's output has the target's joint distribution, with all of it on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("scipy", reason="scipy is not installed: no chi-square tests")

from table_model import TableModel, chi_square, continuations, joint, pruned

from rdk_cuda import _ops as operators
from rdk_cuda._ops.contract import OPERATORS
from rdk_cuda.decoding import Output, SpeculativeDecoder
from tests.decoding.test_parts import AFFINITY, DRAFTER, FALSE_ALARM, LENGTH, PROMPT, SIZE, TARGET

pytestmark = pytest.mark.usefixtures("on_device")


def test_models_affinity_and_operators_on_the_device(
    native: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OPERATORS:
        monkeypatch.setattr(operators, name, getattr(native, name))
    torch.use_deterministic_algorithms(False)

    class ThereModel(TableModel):
        def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
            return Output(super().feed(tokens, keep).logits.to(device))

    monkeypatch.setattr(ThereModel, "device", device)
    decoder = SpeculativeDecoder(
        ThereModel(TARGET.table, SIZE),
        ThereModel(pruned(DRAFTER, AFFINITY), SIZE),
        AFFINITY,
        draft_length=2,
    )

    counts = continuations(lambda: decoder, PROMPT, LENGTH, 12_000)
    assert chi_square(counts, joint(TARGET, PROMPT, LENGTH)) > FALSE_ALARM
