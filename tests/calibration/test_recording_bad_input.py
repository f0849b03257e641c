"""Outputs of models, texts and arguments that no recording can be made of are refused."""

from __future__ import annotations

import re

import pytest
import torch

from rdk_cuda.decoding.models import Reading

from .bigram_recordings import (
    V_T,
    D,
    Window,
    read,
    recorded,
    table,
    windows_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def _reading_with(name: str, value: float):
    """In the second of the windows of length 4, at position 2."""
    bad = windows_of()[8].ids

    def bad_read(ids: torch.Tensor) -> Reading:
        reading = Reading(*(tensor.clone() for tensor in read(ids)))
        for row, window in enumerate(ids.tolist()):
            if window == bad:
                getattr(reading, name)[row, 2, 1] = value
        return reading

    return bad_read


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("target_logits", torch.nan, "target_logits has NaN"),
        ("target_logits", torch.inf, "target_logits has inf"),
        ("hidden", -torch.inf, "hidden has NaN or inf"),
    ],
)
def test_bad_values_are_refused_with_their_place(name: str, value: float, sentence: str) -> None:
    place = re.escape("window 8 (document 4), position 2: ")
    with pytest.raises(ValueError, match=f"record: {place}{sentence}; needs"):
        recorded(model=_reading_with(name, value))


def test_a_row_of_logits_without_a_finite_one_is_refused() -> None:
    def nothing(ids: torch.Tensor) -> Reading:
        return Reading(torch.full((*ids.shape, V_T), -torch.inf), table(D)[ids])

    with pytest.raises(ValueError, match="position 0: target_logits are all -inf"):
        recorded(model=nothing)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (lambda ids: Reading(table(V_T)[ids, : V_T - (ids.numel() > 9)], table(D)[ids]),
         r"target_logits torch.float32 \[3, 7, 39\].*needs floating point \[3, 7, V_t = 40\]"),
        (lambda ids: Reading(table(V_T)[ids], table(D)[ids, : D - (ids.numel() > 9)]),
         r"hidden torch.float32 \[3, 7, 2\] for windows 0 to 2; needs .*d = 3\]"),
        (lambda ids: Reading(table(V_T)[ids[0]], table(D)[ids]),
         r"target_logits torch.float32 \[2, 40\] for two tokens 0; needs .*\[1, 2, V_t\]"),
        (lambda ids: Reading(table(V_T)[ids].long(), table(D)[ids]), "torch.int64"),
        (lambda ids: Reading(table(V_T)[ids[:, :5]], table(D)[ids]), r"\[3, 5, 40\]"),
    ],
)  # fmt: skip
def test_outputs_of_other_shapes_are_refused(returned, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"record: read returned .*{sentence}"):
        recorded(model=returned)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"windows": []}, "windows is empty"),
        ({"windows": [Window(0, [1]), Window(4, [])]}, r"window 1 \(document 4\) has no tokens"),
        ({"windows": [Window(2, [1, V_T])]}, "window 0 .document 2. has token 40 at position 1"),
        ({"windows": [Window(2, [-1])]}, "has token -1 at position 0; needs ids in"),
        ({"temperatures": ()}, r"temperatures are \[\]"),
        ({"temperatures": (1.0, 0.0)}, r"temperatures are \[1.0, 0.0\]; needs"),
        ({"temperatures": (float("nan"),)}, "temperatures are"),
        ({"temperatures": (1e-38,)}, "target_logits / 1e-38 overflow float32; needs a higher"),
        ({"temperatures": (1, 1.0)}, "distinct"),
        ({"samples": -1}, "samples is -1"),
        ({"context": 0}, "context is 0"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"state": "/no/such/folder/state"}, "state is /no/such/folder/state; needs"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"record: .*{sentence}"):
        recorded(**changes)
