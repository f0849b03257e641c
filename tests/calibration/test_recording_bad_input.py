"""Outputs of models, texts and arguments that no recording can be made of are refused."""

from __future__ import annotations

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


def _returning(logits=lambda ids: table(V_T)[ids], hidden=lambda ids: table(D)[ids]):
    return {"model": lambda ids: Reading(logits(ids), hidden(ids))}


PLACE = r"window 8 \(document 4\), position 2: "
BAD = [
    ({"model": _reading_with("target_logits", torch.nan)}, f"{PLACE}target_logits has NaN; needs"),
    ({"model": _reading_with("target_logits", torch.inf)}, f"{PLACE}target_logits has inf; needs"),
    ({"model": _reading_with("hidden", -torch.inf)}, f"{PLACE}hidden has NaN or inf; needs"),
    (
        _returning(lambda ids: torch.full((*ids.shape, V_T), -torch.inf)),
        "position 0: target_logits are all -inf",
    ),
    (
        _returning(lambda ids: table(V_T)[ids, : V_T - (ids.numel() > 9)]),
        r"target_logits torch.float32 \[3, 7, 39\].*needs floating point \[3, 7, V_t = 40\]",
    ),
    (
        _returning(hidden=lambda ids: table(D)[ids, : D - (ids.numel() > 9)]),
        r"hidden torch.float32 \[3, 7, 2\] for windows 0 to 2; needs .*d = 3\]",
    ),
    (
        _returning(lambda ids: table(V_T)[ids[0]]),
        r"target_logits torch.float32 \[2, 40\] for two tokens 0; needs .*\[1, 2, V_t\]",
    ),
    (_returning(lambda ids: table(V_T)[ids].long()), "torch.int64"),
    (_returning(lambda ids: table(V_T)[ids[:, :5]]), r"\[3, 5, 40\]"),
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
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_models_texts_and_arguments_are_refused_by_name(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"record: .*{sentence}"):
        recorded(**changes)
