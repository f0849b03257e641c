"""Layers of a cache with recurrent and convolution states, and what is done with states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import LinearAttentionLayer

from .slot_layer import SlotLayer

States = dict[tuple[str, int], Tensor]
"""Of a layer: `[B, ...]` by the library's attribute, "conv_states" or "recurrent_states", and its
number there. Empty before the first token."""


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent states; what a pass notes of how they came about is in `notes`.

    For a convolution: its state and the columns behind it, `[B, C, size + W]`; for a kernel its
    `Call`; None if it is not known.
    """

    reading: Any = None  # the `Pass` that notes them
    notes: dict[tuple[str, int], Any]

    def update_conv_state(self, states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """As the library's; of sequences that end before the pass, their own last columns."""
        goes_on = self.has_previous_state[state_idx]
        read: Tensor = super().update_conv_state(states, state_idx, **kwargs)
        if self.reading is not None:
            columns = None
            if kwargs.get("conv_kernel_size") is not None:  # so these are the pass's own columns
                own = self.conv_states[state_idx]
                columns = read if goes_on else functional.pad(states, (own.shape[-1], 0))
                if self.reading.kept is not None:
                    own.copy_(window_of(columns, self.reading.kept.sum(1), own.shape[-1]))
            self.reading.note(self.notes, ("conv_states", state_idx), columns)
        return read

    def update_recurrent_state(self, states: Tensor, state_idx: int = 0, **kwargs: Any) -> Any:
        """As the library's."""
        if self.reading is not None:
            call, self.reading.call = self.reading.call, None
            is_own = call is not None and call.states is states
            call = call._replace(states=None) if call is not None and is_own else None
            self.reading.note(self.notes, ("recurrent_states", state_idx), call)
        return super().update_recurrent_state(states, state_idx, **kwargs)


class StateSlotLayer(StateLayer, SlotLayer):  # type: ignore[misc]
    """A layer with recurrent states beside keys and values in slots."""

    is_compileable = False

    def __init__(self, number_of_states: int) -> None:
        SlotLayer.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states)


def states_of(layer: Any) -> States:
    """A layer's own states, which the next pass may write over."""
    return {
        (name, number): state
        for name in ("conv_states", "recurrent_states")
        for number, state in getattr(layer, name).items()
        if state is not None
    }


def rows_of(states: States, rows: Tensor) -> States:
    """Copies of the states of some sequences."""
    return {key: state[rows.to(state.device)] for key, state in states.items()}


def add_rows(states: States, some: States, rows: Tensor, count: int) -> None:
    """Put states of some sequences among those of all, of which there are so many."""
    for key, state in some.items():
        if key not in states:
            states[key] = state.new_zeros(count, *state.shape[1:])
        states[key][rows.to(state.device)] = state


def set_states(layer: Any, states: States) -> None:
    """Give a layer these states, which it will write over."""
    for (name, number), state in states.items():
        getattr(layer, name)[number] = state
        getattr(layer, f"is_{name}_initialized")[number] = True
        layer.has_previous_state[number] = True
        if name == "conv_states":
            layer.conv_kernel_size[number] = state.shape[-1]
        if layer.device is None:
            layer.dtype, layer.device = state.dtype, state.device


def window_of(columns: Tensor, counts: Tensor, size: int) -> Tensor:
    """Cut out a convolution's state after so many columns behind a state, `[B, C, size]`."""
    at = counts[:, None, None] + torch.arange(size, device="cpu")
    return columns.gather(2, at.expand(-1, columns.shape[1], -1).to(columns.device))
