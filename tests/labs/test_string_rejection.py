"""String-level rejection sampling leaves the target's joint distribution as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import test_text_drafter
from test_text_losslessness import CAUGHT, FALSE_ALARM, drafter, p_value
from torch import Tensor

import rdk_cuda
from rdk_cuda.labs.string_rejection import StringRejection


def strings() -> StringRejection:
    return StringRejection(drafter(), 259, draft_length=3)


@pytest.mark.parametrize(("temperature", "method"), [(1.0, "token"), (0.7, "block")])
def test_string_level_rejection_is_lossless(temperature: float, method: str) -> None:
    assert p_value(strings(), temperature, method) > FALSE_ALARM


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_million_texts(method: str) -> None:
    assert p_value(strings(), 1.0, method, 10**6) > FALSE_ALARM


def test_control_a_psi_that_did_not_draw_the_token_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where drafts are judged, the newest token's psi is left out of its continuations'."""
    verify = rdk_cuda.verify

    def mistaken(logits: Tensor, draft: Any, *rest: Any, **options: Any) -> Any:
        if draft.dynamic_logits is not None:
            draft = replace(draft, stats=None, dynamic_logits=draft.dynamic_logits - 3)
        return verify(logits, draft, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", mistaken)
    assert p_value(strings()) < CAUGHT


def test_a_byte_that_the_target_has_no_token_for_is_not_drafted() -> None:
    test_text_drafter.assert_odd_byte_is_not_drafted(StringRejection, target_size=255)
