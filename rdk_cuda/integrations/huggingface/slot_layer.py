"""A layer of a KV cache that appends in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import cache_utils
from transformers.cache_utils import DynamicLayer


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values in slots that are allocated beforehand, `[B, heads, capacity, d]`.

    `DynamicLayer` copies all that it has whenever it appends. This one writes behind what it has,
    and only where its slots do not suffice, it moves to half as many again. `keys` and `values`
    are views of the slots in use.

    Attributes:
        start: from which slot on attention gets them, in a layer whose window slides.
    """

    keys: Tensor
    values: Tensor
    start = 0

    def __init__(self) -> None:
        super().__init__()
        self._slots: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append; returns what is in use from `start` on."""
        if not self._slots:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self._slots = [states[:, :, :0] for states in (key_states, value_states)]
            self._use(0)
        used = self.keys.shape[2]
        end = used + key_states.shape[2]
        if end > self._slots[0].shape[2]:
            capacity = end if used == 0 else end + end // 2
            more = 0, 0, 0, capacity - used
            self._slots = [functional.pad(states, more) for states in (self.keys, self.values)]
        # Narrowed, not indexed: a third of the time, and this runs in every layer of every pass.
        for slots, states in zip(self._slots, (key_states, value_states), strict=True):
            slots.narrow(2, used, end - used).copy_(states)
        self._use(end)
        if not self.start:
            return self.keys, self.values
        return self.keys[:, :, self.start :], self.values[:, :, self.start :]

    def keep(self, count: int) -> None:
        """Use the first `count` slots alone."""
        self._use(count)

    def _use(self, count: int) -> None:
        keys, values = self._slots
        self.keys, self.values = keys.narrow(2, 0, count), values.narrow(2, 0, count)

    def close_gaps(self, order: Tensor) -> None:
        """Move the slots `order [B, n]` of each sequence to the front, and use those alone."""
        index = order[:, None, :, None].to(self.device)  # which may be this layer's alone
        for slots, states in zip(self._slots, (self.keys, self.values), strict=True):
            shape = (-1, states.shape[1], -1, states.shape[3])
            slots[:, :, : order.shape[1]] = states.gather(2, index.expand(shape))
        self.keep(order.shape[1])


# Older releases have no such layers.
_Indexed: Any = getattr(cache_utils, "DynamicIndexedLayer", DynamicLayer)


class IndexedSlotLayer(SlotLayer, _Indexed):  # type: ignore[misc]
    """As `SlotLayer`, with what an indexer chooses the slots by: its keys `[B, S, d_i]`.

    Their positions `[n, B, S]` are what a model has written there itself, if it does.
    """

    indexer_keys: Tensor | None
    indexer_position_ids: Tensor | None = None

    def keep(self, count: int) -> None:
        """As `SlotLayer.keep`."""
        super().keep(count)
        if self.indexer_keys is not None:
            self.indexer_keys = self.indexer_keys[:, :count]
        if self.indexer_position_ids is not None:
            self.indexer_position_ids = self.indexer_position_ids[..., :count]

    def close_gaps(self, order: Tensor) -> None:
        """As `SlotLayer.close_gaps`."""
        own = order.to(self.device)
        if self.indexer_keys is not None:
            self.indexer_keys = self.indexer_keys.take_along_dim(own[:, :, None], 1)
        if self.indexer_position_ids is not None:
            self.indexer_position_ids = self.indexer_position_ids.take_along_dim(own[None], 2)
        super().close_gaps(order)
