"""A cache of the library for each sequence, for models in which gaps between slots would matter.

Llama 4 scales queries by slots, DeepSeek V4 closes its windows as tokens come. So each sequence has
a pass of its own, over a copy of its newest cache. The older ones are kept until the next rollback,
which goes back to one of them; what a sequence keeps beyond it is read again with its next pass.
Copies are shallow, since the library replaces its tensors, but for states, which it writes over.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ...decoding.models import Ragged
from ...decoding.trees import branch
from .library import CACHE_ARGUMENTS
from .slot_cache import SlotCache, pieces


class RowCache(SlotCache):
    """As `SlotCache`, for a model that runs once for each sequence, and for each path of a tree."""

    apart = True

    def reset(self, batch_size: int) -> None:
        """As `SlotCache.reset`."""
        if batch_size > 1 and self.warning is not None:
            warnings.warn(self.warning, stacklevel=3)
            self.warning = None
        super().reset(batch_size)
        self.texts: list[list[int]] = [[] for _ in range(batch_size)]
        # Of each sequence, caches after so many tokens, the newest last.
        self._caches: list[list[tuple[int, Any]]] = [[self._empty()] for _ in range(batch_size)]

    def append(
        self, real: Tensor, parents: Ragged | None = None, *, final: bool = False
    ) -> tuple[Tensor, None]:
        """As `SlotCache.append`; the model is given neither positions nor a mask of these."""
        counts = real.sum(1).tolist()
        self._columns = list(ways(counts, parents))
        self._known, self._final = list(self.lengths), final
        self.lengths = [old + new for old, new in zip(self.lengths, counts, strict=True)]
        self.tree_sizes = list(map(len, parents or [[]] * len(counts)))
        return torch.zeros(real.shape, dtype=torch.int64, device="cpu"), None

    def run(self, module: Any, arguments: Mapping[str, Any]) -> Any:
        """As `SlotCache.run`; its outputs are 0 at padding."""
        joined: dict[str, Any] = {}
        for b, columns in self._columns:
            if columns:
                self._join(joined, self._one(module, arguments, b, columns), b, columns)
        return SimpleNamespace(**joined)

    def keep_paths(self, paths: Ragged) -> None:
        """As `SlotCache.keep_paths`."""
        for b, (size, path) in enumerate(zip(self.tree_sizes, paths, strict=True)):
            if size:
                known, text = self.lengths[b] - size, self.texts[b]
                self.texts[b] = text[:known] + [text[known + node] for node in path]
                self.lengths[b] = len(self.texts[b])
        self.tree_sizes = [0] * len(self.lengths)

    def rollback(self, lengths: Sequence[int]) -> None:
        """As `SlotCache.rollback`."""
        self.keep_paths([[] for _ in self.lengths])
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
        for b, length in enumerate(self.lengths):
            self.texts[b] = self.texts[b][:length]
            caches = [each for each in self._caches[b] if each[0] <= length]
            self._caches[b] = caches[-1:] or [self._empty()]

    def _empty(self) -> tuple[int, Any]:
        return 0, DynamicCache(config=self.config)

    def _past(self) -> Any:
        return SimpleNamespace(layers=[])

    def _one(self, module: Any, arguments: Mapping[str, Any], b: int, columns: list[int]) -> Any:
        """Read what sequence b has not read yet, and these columns; the output for all of it."""
        count, cache = self._caches[b][-1]
        ids, known = arguments["input_ids"], self._known[b]
        before = ids.new_tensor(self.texts[b][count:known])
        new, cache = torch.cat([before, ids[b, columns]])[None], _copied(cache)
        name = next(each for each in CACHE_ARGUMENTS if each in arguments)
        for piece in pieces(new.shape[1], len(columns)):
            own = {"input_ids": new[:, piece], "attention_mask": None, name: cache}
            if "position_ids" in arguments:
                places = torch.arange(count + piece.start, count + piece.stop, device=ids.device)
                own["position_ids"] = places[None]
            if "logits_to_keep" in arguments:
                own["logits_to_keep"] = len(columns) if arguments["logits_to_keep"] > 1 else 1
            output = module(**{**arguments, **own})
        if not self.tree_sizes[b]:
            older = [] if self._final else self._caches[b]
            self._caches[b] = [*older, (count + new.shape[1], cache)]
        return output

    def _join(self, joined: dict[str, Any], output: Any, b: int, columns: list[int]) -> None:
        """Put the output for a sequence's columns among those of all."""
        width = 1 + max(column for _, own in self._columns for column in own)

        def put(all_: Tensor | None, own: Tensor) -> Tensor:
            if all_ is None:
                all_ = own.new_zeros(len(self.lengths), width, *own.shape[2:])
            count = min(len(columns), own.shape[1])
            all_[b, columns[-count:]] = own[0, -count:]
            return all_

        for name in ("logits", "last_hidden_state"):
            if (own := getattr(output, name, None)) is not None:
                joined[name] = put(joined.get(name), own)
        if (layers := getattr(output, "hidden_states", None)) is not None:
            old = joined.get("hidden_states", [None] * len(layers))
            joined["hidden_states"] = [put(*each) for each in zip(old, layers, strict=True)]


def ways(counts: Sequence[int], parents: Ragged | None) -> Iterator[tuple[int, list[int]]]:
    """Each sequence's columns in a pass, and of a tree each way through them to a leaf."""
    for b, count in enumerate(counts):
        own = [] if parents is None else parents[b]
        first, inner = count - len(own), set(own)
        for leaf in [node for node in range(len(own)) if node not in inner] or [-1]:
            yield b, [*range(first), *(first + node for node in branch(own, leaf))]


def _copied(cache: Any) -> Any:
    """A cache that grows while this one stays as it is."""
    own = _shallow(cache)
    own.layers = [_shallow(layer) for layer in cache.layers]
    for layer in own.layers:
        if hasattr(layer, "update_conv_state"):
            for states in vars(layer).values():
                for key, state in states.items() if isinstance(states, dict) else ():
                    states[key] = state.clone() if isinstance(state, Tensor) else state
    return own


def _shallow(whole: Any) -> Any:
    own = copy(whole)
    for name, value in vars(whole).items():
        if isinstance(value, dict | list):
            setattr(own, name, copy(value))
    return own
