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

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from ...decoding.models import Ragged
from .attention import Layers, first_seen, is_seen
from .slot_layer import IndexedSlotLayer, SlotLayer

# Longer prompts are read in pieces, so that the mask is at most [B, 1, 512, slots].
_PREFILL_COLUMNS = 512

Masks = Tensor | dict[str, Tensor | None] | None


class SlotCache:
    """Keys and values of a batch, and which of them each sequence owns.

    Args:
        config: the model's, from which the library makes its layers.
        layers: how far they look back.
        dtype, device: of the masks.

    Attributes:
        past: what the model takes as its KV cache.
        lengths: how many tokens each sequence has.
        alive: `[B, slots]`, which slots each sequence owns.
        tree_sizes: how many of them are nodes of a tree.
        recent: each layer sees only so many of the last tokens, and the first. None: all.
        apart: sequences begin at the first column of a pass, and tokens whose logits are kept have
            one of their own, if the others are many. The cache then has the sequences' `texts`.
        warning: given once, before the first batch of several sequences.
    """

    apart = False
    texts: list[list[int]]
    warning: str | None = None

    def __init__(
        self, config: Any, layers: Layers, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.layers, self.dtype, self.device = config, layers, dtype, device
        self.recent: int | None = None
        least = torch.finfo(dtype).min
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._unseen = torch.full((), least, dtype=dtype, device=device)
        self.reset(0)

    def reset(self, batch_size: int) -> None:
        """Forget everything."""
        self.past = self._past()
        self._with_keys = [layer for layer in self.past.layers if hasattr(layer, "start")]
        # In NumPy, whose calls on little data cost a third of torch's.
        self.alive: NDArray[np.bool_] = np.zeros((batch_size, 0), bool)
        self._places: NDArray[np.int64] = np.zeros((batch_size, 0), np.int64)
        # Of each node of a sequence's tree, the slots from the root's child down to its own.
        self._ways: list[list[list[int]]] | None = None
        self.lengths, self.tree_sizes = [0] * batch_size, [0] * batch_size

    def append(
        self, real: Tensor, parents: Ragged | None = None, *, final: bool = False
    ) -> tuple[Tensor, Masks]:
        """Count the columns of the pass that comes as every sequence's own.

        Args:
            real: `[B, W]` bool on the CPU, which columns are a sequence's tokens.
            parents: of all nodes of each sequence's tree; its newest ones are its last columns.
            final: none of them will be taken back, which saves memory where there are states.

        Returns:
            positions `[B, W]`, and the additive mask `[B, 1, W, slots + W]` that all layers take,
            or one for each kind of layer, as the library names them; None without attention.
        """
        positions, seen = self._count(real, parents)
        return positions.to(self.device), self._masks(real, positions, seen)

    def append_read(self, real: Tensor) -> Tensor:
        """As `append`, of columns that are read without our mask, which is large for many."""
        return self._count(real, None)[0].to(self.device)

    def run(self, module: Any, arguments: Mapping[str, Any]) -> Any:
        """Call a module of the model for the pass that was appended."""
        return module(**arguments)

    def keep_paths(self, paths: Ragged) -> None:
        """Of the nodes of each tree, keep those of a branch, as the sequence's next tokens."""
        if self._ways is None:
            return
        for b, (ways, path) in enumerate(zip(self._ways, paths, strict=True)):
            self.alive[b, [way[-1] for way in ways]] = False
            self.alive[b, [ways[node][-1] for node in path]] = True
            self.lengths[b] += len(path) - len(ways)
        self._ways, self.tree_sizes = None, [0] * len(self.lengths)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is.

        Of a tree nothing is left but what `keep_paths` has kept.
        """
        nothing = all(old <= new for old, new in zip(self.lengths, lengths, strict=True))
        no_gaps = self.alive.shape[1] == max(self.lengths, default=0)
        if nothing and no_gaps and self._ways is None:
            return
        self.keep_paths([[] for _ in self.lengths])
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
        self.alive &= self.alive.cumsum(1) <= np.array(self.lengths, np.int64)[:, None]
        self._drop_dead_slots()

    def states(self) -> list[Tensor]:
        """Of recurrent layers, `[B, ...]`, behind each sequence's last token."""
        return []

    def _past(self) -> Any:
        """The library's cache for the model, with our layers."""
        past = DynamicCache(config=self.config)
        # A dummy is of a layer without attention, or with another one's keys.
        kinds = {"DummyLayer": None, "DynamicIndexedLayer": IndexedSlotLayer}
        made = [kinds.get(type(layer).__name__, SlotLayer) for layer in past.layers]
        past.layers = [
            own if kind is None else kind() for own, kind in zip(past.layers, made, strict=True)
        ]
        return past

    def _count(
        self, real: Tensor, parents: Ragged | None
    ) -> tuple[Tensor, NDArray[np.bool_] | None]:
        """Own a pass's columns; their positions, and what a tree lets each see."""
        own, lengths = real.numpy(), np.array(self.lengths, np.int64)
        counts, seen = own.sum(1), None
        if parents is not None:
            places, seen = self._grow(own, parents)
        else:
            # A padding column is seen by nobody; its position only has to be a legal one.
            places = (lengths[:, None] + own.cumsum(1) - 1).clip(0)
        self.alive = np.concatenate([self.alive, own], 1)
        self._places = np.concatenate([self._places, places], 1)
        self.lengths = (lengths + counts).tolist()
        return torch.from_numpy(places), seen

    def _grow(
        self, real: NDArray[np.bool_], parents: Ragged
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Positions of a pass with nodes, and what a tree lets each see, `[B, W, S + W]`."""
        (batch, width), first = real.shape, self.alive.shape[1]
        positions = np.zeros((batch, width), np.int64)
        seen = np.ones((batch, width, first + width), bool)
        self._ways = self._ways or [[] for _ in parents]
        for b, (own, ways) in enumerate(zip(parents, self._ways, strict=True)):
            columns, known = np.flatnonzero(real[b]).tolist(), self.lengths[b] - len(ways)
            new = len(own) - len(ways)
            plain = len(columns) - new
            positions[b, columns[:plain]] = range(known, known + plain)
            for column, parent in zip(columns[plain:], own[len(ways) :], strict=True):
                above = ways[parent] if 0 <= parent < len(ways) else []
                positions[b, column] = known + plain + len(above)
                ways.append([*above, first + column])
            seen[b, :, [way[-1] for way in ways]] = False
            for column, way in zip(columns[plain:], ways[len(own) - new :], strict=True):
                seen[b, column, way] = True
        self.tree_sizes = list(map(len, parents))
        return positions, seen

    def _masks(self, real: Tensor, positions: Tensor, seen: NDArray[np.bool_] | None) -> Masks:
        """Of a pass; sliding layers are told from which slot on theirs begins."""
        visible, (sliding, window, *_) = self._visible(real), self.layers
        if seen is not None:
            visible = visible & torch.from_numpy(seen).to(self.device)
        if self.recent is None and window is None:
            return self._additive(visible)
        keys, queries = torch.from_numpy(self._places).to(self.device), positions.to(self.device)
        if self.recent is not None:
            visible = visible & (is_seen(queries, keys, self.recent) | (keys == 0)[:, None, :])
        if window is None:
            return self._additive(visible)
        before = torch.from_numpy(self.alive[:, : self.alive.shape[1] - real.shape[1]])
        start = first_seen(before, real, positions, window)
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
        """Say what each query sees with full attention, `[B, W, slots + W]`.

        A padding query sees itself and nothing else. Were its row masked altogether, its softmax
        could be NaN, and NaN times a weight of 0 would reach the sequences' own queries.
        """
        alive = torch.from_numpy(self.alive).to(self.device)[:, None]
        width, first = real.shape[1], self.alive.shape[1] - real.shape[1]
        if real.numpy().all():
            return alive if width == 1 else alive.expand(-1, width, -1).tril(first)
        visible = (alive & real.to(self.device)[:, :, None]).tril(first)
        visible.diagonal(first, 1, 2).fill_(True)
        return visible

    def _additive(self, visible: Tensor) -> Tensor:
        """`[B, 1, W, S]`, which sdpa and eager attention both take."""
        return torch.where(visible, self._seen, self._unseen)[:, None]

    def _drop_dead_slots(self) -> None:
        """Drop what follows the last live slot; close the gaps too if that saves a quarter.

        So a cache never has more slots in use than 4/3 of the longest sequence and one pass.
        """
        used = np.flatnonzero(self.alive.any(0))
        width, longest = int(used[-1]) + 1 if len(used) else 0, max(self.lengths, default=0)
        if 4 * longest < 3 * width:
            order = (~self.alive).argsort(1, kind="stable")[:, :longest]
            self.alive = np.take_along_axis(self.alive, order, 1)
            self._places = np.take_along_axis(self._places, order, 1)
            index = torch.from_numpy(order.copy()).to(self.device)
            for layer in self._filled():
                layer.close_gaps(index)
            self._cut_positions(lambda own: own.take_along_dim(index[None], 2))
        elif width < self.alive.shape[1]:
            self.alive, self._places = self.alive[:, :width], self._places[:, :width]
            for layer in self._filled():
                layer.keep(width)
            self._cut_positions(lambda own: own[..., :width])

    def _cut_positions(self, cut: Callable[[Tensor], Tensor]) -> None:
        """Of slots, `[n, B, S]`, where a model has bound them to the cache: Qwen4 up to 5.20."""
        if hasattr(self.past, "position_ids"):
            self.past.position_ids = cut(self.past.position_ids)

    def _filled(self) -> list[Any]:
        """The layers with keys; a model may leave some of those alone that it declares."""
        return [layer for layer in self._with_keys if layer.is_initialized]


def lay_out(tokens: Ragged, keep: Sequence[int], *, in_front: bool = True) -> tuple[Tensor, Tensor]:
    """Ragged tokens as columns: ids `[B, W]`, and which of them are real.

    The kept ones start at the same column in every sequence, so that the last max(keep) columns are
    already aligned as `CausalModel.feed` promises; padding may lie on both sides. Or it lies not
    `in_front`: then it follows the kept tokens, and those before them.
    """
    if len({*map(len, tokens)}) == len({*keep}) == 1:
        whole = torch.from_numpy(np.array(tokens, np.int64))
        return whole, torch.ones_like(whole, dtype=torch.bool)
    before = max(len(new) - kept for new, kept in zip(tokens, keep, strict=True))
    ids = np.zeros((len(tokens), before + max(keep)), np.int64)
    real = np.zeros(ids.shape, bool)
    for b, (new, kept) in enumerate(zip(tokens, keep, strict=True)):
        first = len(new) - kept
        start = before - first if in_front else 0
        ids[b, start : start + first], ids[b, before : before + kept] = new[:first], new[first:]
        real[b, start : start + first] = real[b, before : before + kept] = True
    return torch.from_numpy(ids), torch.from_numpy(real)


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
