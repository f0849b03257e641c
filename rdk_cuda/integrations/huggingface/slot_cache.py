"""A KV cache of Hugging Face's layers whose sequences grow and roll back separately.

The library's caches have one length for the whole batch, while speculative decoding accepts another
number of tokens in every sequence. So this cache is a row of *slots*: each forward pass appends its
columns to all sequences, and a mask tells which slots a sequence owns. Rejected and padding entries
stay as dead slots until dropping them pays. The slots of a sequence are in the order of its
positions, whatever lies between them: a mask and explicit positions are enough.

A tree's nodes are columns as well, behind all other tokens of their sequence. A node sees those,
its ancestors and itself, and stands one position behind its parent. The slots of a branch that is
kept are in the order of positions again.

A sliding layer's mask hides what lies outside its window by position, and the layer is handed the
slots from the first one that any query sees. It keeps the older ones: after a rollback a window
reaches back to them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rdk_cuda.decoding.trees import ancestors

from .attention import Layers, first_seen, is_seen

# Longer prompts are read in pieces, so that the mask is at most [B, 1, 512, slots].
_PREFILL_COLUMNS = 512


class SlotCache:
    """Keys and values of a batch, and which of them each sequence owns.

    Args:
        config: the model's, from which the library makes its layers.
        layers: how far they look back.
        dtype, device: of the masks.

    Attributes:
        past: what the model takes as its KV cache.
        lengths: how many tokens each sequence has.
        tree_sizes: how many of them are nodes of a tree.
        recent: each layer sees only so many of the last tokens, and the first. None: all.
    """

    def __init__(
        self, config: Any, layers: Layers, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.layers, self.dtype, self.device = config, layers, dtype, device
        self.recent: int | None = None
        self.reset(0)

    def reset(self, batch_size: int, slots: int = 0) -> None:
        """Forget everything, and make room for `slots` tokens with the first pass."""
        self.past = self._past(slots)
        self._with_keys = [layer for layer in self.past.layers if hasattr(layer, "start")]
        self._alive = torch.zeros(batch_size, 0, dtype=torch.bool, device="cpu")
        self._places = torch.zeros(batch_size, 0, dtype=torch.int64, device="cpu")
        self._nodes: Tensor | None = None  # which node of a tree each slot has, -1 for none
        self.lengths, self.tree_sizes = [0] * batch_size, [0] * batch_size

    def append(
        self,
        real: Tensor,
        parents: Sequence[Sequence[int]] | None = None,
        *,
        final: bool = False,
    ) -> tuple[Tensor, Tensor | dict[str, Tensor | None] | None]:
        """Count the columns of the pass that comes as every sequence's own.

        Args:
            real: `[B, W]` bool on the CPU, which columns are a sequence's tokens.
            parents: of all nodes of each sequence's tree; its newest ones are its last columns.
            final: none of them will be taken back, which saves memory where there are states.

        Returns:
            positions `[B, W]`, and the additive mask `[B, 1, W, slots + W]` that all layers take,
            or one for each kind of layer, as the library names them; None without attention.
        """
        lengths = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        # A padding column is seen by nobody; its position only has to be a legal one.
        positions = (lengths[:, None] + real.cumsum(1) - 1).clamp_(min=0)
        seen = None
        if parents is not None:
            positions, seen = self._grow(real, parents)
        masks = self._masks(real, positions, seen)
        self._alive = torch.cat([self._alive, real], dim=1)
        self._places = torch.cat([self._places, positions], dim=1)
        self.lengths = (lengths + real.sum(1)).tolist()
        return positions.to(self.device), masks

    def run(self, module: Any, arguments: Mapping[str, Any]) -> Any:
        """Call a module of the model for the pass that was appended."""
        return module(**arguments)

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Of the nodes of each tree, keep those of a branch, as the sequence's next tokens."""
        if self._nodes is None:
            return
        kept = torch.zeros(len(paths), int(self._nodes.max()) + 2, dtype=torch.bool, device="cpu")
        kept[:, -1] = True  # what is no node
        for row, path in zip(kept, paths, strict=True):
            row[list(path)] = True
        self._alive &= kept.gather(1, self._nodes.where(self._nodes >= 0, kept.shape[1] - 1))
        self._nodes, self.lengths = None, self._alive.sum(1).tolist()
        self.tree_sizes = [0] * len(self.lengths)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is.

        Of a tree nothing is left but what `keep_paths` has kept.
        """
        self.keep_paths([[] for _ in self.lengths])
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
        kept = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        self._alive &= self._alive.cumsum(1) <= kept[:, None]
        self._drop_dead_slots()

    def _past(self, slots: int) -> Any:
        """The library's cache for the model, with our layers."""
        from transformers import DynamicCache

        from .slot_layer import IndexedSlotLayer, SlotLayer

        past = DynamicCache(config=self.config)
        # A dummy is of a layer without attention, or with another one's keys.
        kinds = {"DummyLayer": None, "DynamicIndexedLayer": IndexedSlotLayer}
        made = [kinds.get(type(layer).__name__, SlotLayer) for layer in past.layers]
        past.layers = [
            own if kind is None else kind(slots)
            for own, kind in zip(past.layers, made, strict=True)
        ]
        return past

    def _grow(self, real: Tensor, parents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Positions of a pass with nodes, and what a tree lets each see, `[B, W, S + W]`."""
        old = torch.full_like(self._places, -1) if self._nodes is None else self._nodes
        wanted = [len(own) for own in parents]
        known = [n - size for n, size in zip(self.lengths, self.tree_sizes, strict=True)]
        new = [n - size for n, size in zip(wanted, self.tree_sizes, strict=True)]
        ends = torch.tensor([wanted, new, known], dtype=torch.int64, device="cpu")[:, :, None]
        from_end = real.flip(1).cumsum(1).flip(1)
        newest = real & (from_end <= ends[1])
        nodes = (ends[0] - from_end).where(newest, -1)
        filled = [[*own, *[-1] * (max(wanted) - len(own))] for own in parents]
        among = ancestors(torch.tensor(filled, dtype=torch.int64, device="cpu"))
        # The last row and column, which -1 finds, are for what is no node: all see it.
        seen = torch.nn.functional.pad(among, (0, 0, 0, 1))
        seen = torch.nn.functional.pad(seen, (0, 1), value=True)
        batch, depth = torch.arange(len(real), device="cpu")[:, None], seen.sum(2) - 1
        after = ends[2] + (real & ~newest).cumsum(1) - 1
        positions = after.where(nodes < 0, after[:, -1:] + depth[batch, nodes])
        self._nodes, self.tree_sizes = torch.cat([old, nodes], dim=1), wanted
        pairs = batch[:, :, None], nodes[:, :, None], self._nodes[:, None, :]
        return positions.clamp_(min=0), seen[pairs]

    def _masks(
        self, real: Tensor, positions: Tensor, seen: Tensor | None
    ) -> Tensor | dict[str, Tensor | None] | None:
        """Of a pass; sliding layers are told from which slot on theirs begins."""
        visible, (sliding, window, _) = self._visible(real), self.layers
        if seen is not None:
            visible &= seen.to(self.device)
        keys = torch.cat([self._places, positions], dim=1).to(self.device)
        queries = positions.to(self.device)
        if self.recent is not None:
            visible &= is_seen(queries, keys, self.recent) | (keys == 0)[:, None, :]
        if window is None:
            return self._additive(visible)
        start = first_seen(self._alive, real, positions, window)
        for layer, slides in zip(self.past.layers, sliding, strict=True):
            layer.start = start if slides else 0
        near = visible[:, :, start:] & is_seen(queries, keys[:, start:], window)
        if all(sliding):
            return self._additive(near)
        return {
            "full_attention": self._additive(visible),
            "sliding_attention": self._additive(near),
        }

    def _visible(self, real: Tensor) -> Tensor:
        """What each query sees with full attention, `[B, W, slots + W]`.

        A padding query sees itself and nothing else. Were its row masked altogether, its softmax
        could be NaN, and NaN times a weight of 0 would reach the sequences' own queries.
        """
        alive, real = self._alive.to(self.device), real.to(self.device)
        column = torch.arange(real.shape[1], device=self.device)
        past = real[:, :, None] & alive[:, None, :]
        present = (column[:, None] >= column) & real[:, :, None] & real[:, None, :]
        return torch.cat([past, present | (column[:, None] == column)], dim=2)

    def _additive(self, visible: Tensor) -> Tensor:
        """`[B, 1, W, S]`, which sdpa and eager attention both take."""
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[:, None]

    def _drop_dead_slots(self) -> None:
        """Drop what follows the last live slot; close the gaps too if that saves a quarter.

        So a cache never has more slots in use than 4/3 of the longest sequence and one pass.
        """
        used = self._alive.any(0).nonzero()
        width, longest = int(used[-1]) + 1 if len(used) else 0, max(self.lengths, default=0)
        if 4 * longest < 3 * width:
            order = self._alive.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
            self._alive = self._alive.gather(1, order)
            self._places = self._places.gather(1, order)
            order = order.to(self.device)
            for layer in self._filled():
                layer.close_gaps(order)
        elif width < self._alive.shape[1]:
            self._alive, self._places = self._alive[:, :width], self._places[:, :width]
            for layer in self._filled():
                layer.keep(width)

    def _filled(self) -> list[Any]:
        """The layers with keys; a model may leave some of those alone that it declares."""
        return [layer for layer in self._with_keys if layer.is_initialized]


def lay_out(
    tokens: Sequence[Sequence[int]], keep: Sequence[int], *, in_front: bool = True
) -> tuple[Tensor, Tensor]:
    """Ragged tokens as columns: ids `[B, W]`, and which of them are real.

    The kept ones start at the same column in every sequence, so that the last max(keep) columns are
    already aligned as `CausalModel.feed` promises; padding may lie on both sides. Or it lies not
    `in_front`: then it follows the kept tokens, and those before them.
    """
    before = max(len(new) - kept for new, kept in zip(tokens, keep, strict=True))
    ids = torch.zeros(len(tokens), before + max(keep), dtype=torch.int64, device="cpu")
    real = torch.zeros_like(ids, dtype=torch.bool)
    for b, (new, kept) in enumerate(zip(tokens, keep, strict=True)):
        first = len(new) - kept
        behind = ((0, new[:first]), (before, new[first:]))
        for at, own in ((before - first, new),) if in_front else behind:
            ids[b, at : at + len(own)] = torch.tensor(own, dtype=torch.int64, device="cpu")
            real[b, at : at + len(own)] = True
    return ids, real


def pieces(width: int, kept: int, *, apart: bool = False, rows: int = 1) -> Iterator[slice]:
    """The columns of a pass, a piece at a time; the last piece has the last `kept` of them.

    With these `apart` they are all that it has, and pieces are narrower for many `rows`.
    """
    first = width - kept
    if apart:
        size = max(_PREFILL_COLUMNS // rows, min(_PREFILL_COLUMNS, 64))
        edges = sorted({*range(0, first, size), first, width})
    else:
        edges = [*range(0, max(first, 1), _PREFILL_COLUMNS), width]
    return (slice(start, end) for start, end in pairwise(edges))
