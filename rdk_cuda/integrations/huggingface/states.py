"""The hidden states of a model that drafters read: inputs of its layers, and of its last norm."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def last_norm(decoder: Any) -> str:
    """The name of the norm behind a decoder's layers."""
    names = ("norm", "norm_f", "final_layernorm", "ln_f", "final_layer_norm")
    found = next((name for name in names if hasattr(decoder, name)), None)
    if found is None:
        raise TypeError(
            f"{type(decoder).__name__}: its last norm has none of the names {', '.join(names)}; "
            "needs a drafter that does not read states before it"
        )
    return found


@contextmanager
def states_of(model: Any, layers: Sequence[int], depth: int) -> Iterator[Any]:
    """A function from what the model returns in here to the states of layers, one after another.

    Of a model of this depth, which as a layer stands for the last hidden state, after the last
    norm, and one more for that before it.
    """
    before, handle, thread = list[Tensor](), None, threading.get_ident()

    def note(_: Any, inputs: Any) -> None:
        if threading.get_ident() == thread:  # others may run the same model
            before.append(inputs[0])

    if depth + 1 in layers:
        decoder = model.get_decoder()
        norm = getattr(decoder, last_norm(decoder))
        handle = norm.register_forward_pre_hook(note)

    def joined(result: Any, device: torch.device | None = None) -> Tensor:
        read = [
            torch.cat(before, dim=1) if at > depth else result.hidden_states[at] for at in layers
        ]
        return torch.cat([states.to(device or states.device) for states in read], dim=-1)

    try:
        yield joined
    finally:
        if handle is not None:
            handle.remove()
