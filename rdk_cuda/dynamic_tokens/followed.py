"""Sources of dynamic tokens beside sequences that grow, of which they read only what is new."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._ops.inputs import upload
from .combined import CombinedTokens
from .sources import DynamicTokens, KeptContexts, RecentTokens, offered, reads_hidden, window_of
from .successors import SuccessorTable


class Followed:
    """A source beside B sequences that grow and are cut back; itself a source, for those alone.

    It names what the source does, and takes only what is new. `RecentTokens`, a `SuccessorTable`
    and both in `CombinedTokens` are one call of `rdk::name_tokens`, on ids that are held beside the
    lists; their last ones are copied to a GPU without waiting for that. Any other source is called
    with the sequences as they are by now, B lists that stay the same objects. If it has a method
    `follow`, that is called once, with B, and what it returns is called in its place: with `kept`
    and `new`, as `read`, and `hidden` if the source reads it.

    Args:
        source: may not be changed from here on.
        batch_size: B; all sequences are empty at first.

    Attributes:
        contexts: the sequences; read them, but do not change them.

    Example:
        >>> from rdk_cuda import RecentTokens, Vocabulary
        >>> followed = Followed(RecentTokens(Vocabulary([0, 1], target_size=10), width=3), 2)
        >>> followed.read([0, 0], [[7, 0, 9], [0, 4]])
        >>> followed()
        tensor([[ 9,  7, -1],
                [ 4, -1, -1]], dtype=torch.int32)
        >>> followed.read([2, 1], [[5], []])
        >>> followed()
        tensor([[ 5,  7, -1],
                [-1, -1, -1]], dtype=torch.int32)
    """

    reads_hidden = True

    def __init__(self, source: DynamicTokens, batch_size: int) -> None:
        given: Any = source
        self.sources = (given,)
        self.contexts: list[list[int]] = [[] for _ in range(batch_size)]
        self._parts: list[Followed] = []
        self._held: _Held | None = None
        combined = type(given) is CombinedTokens  # no types that inherit: these may name anything
        if type(given) in (RecentTokens, SuccessorTable) or (combined and given.is_one_call):
            self._held = _Held(given, batch_size)
        elif combined:
            self._parts = [Followed(part, batch_size) for part in given.sources]
            given = copy.copy(given)
            given.sources = tuple(self._parts)
        self._source = given
        follow: Any = getattr(given, "follow", lambda batch_size: None)
        self._own: Callable[..., Tensor] | None = follow(batch_size)
        self.read([0] * batch_size, [[]] * batch_size)

    def read(self, kept: Sequence[int], new: Sequence[Sequence[int]]) -> None:
        """Take what has changed.

        Args:
            kept: how many of its tokens each sequence keeps, from its beginning.
            new: the tokens that follow these. One that joins in another's place keeps none.

        Raises:
            ValueError: a sequence is to keep more tokens than it has.
        """
        for b, (context, length, tokens) in enumerate(zip(self.contexts, kept, new, strict=True)):
            if length != len(context):
                if not 0 <= length < len(context):
                    needs = f"0 to the sequence's length, {len(context)}"
                    raise ValueError(f"Followed.read: kept[{b}] is {length}; needs {needs}")
                del context[length:]
            context += tokens
            if self._held is not None:
                self._held.put(b, length, tokens)
        self._change = kept, new
        for part in self._parts:
            part.read(kept, new)

    def __call__(self, contexts: object = None, *, hidden: Tensor | None = None) -> Tensor:
        """Name what the source does behind the sequences: `[B, C]`. State is asked once a `read`.

        Args:
            contexts: not looked at.
            hidden: for a source that reads it.
        """
        if self._own is not None:
            options = {"hidden": hidden} if reads_hidden(self._source) else {}
            return self._own(*self._change, **options)
        if self._held is not None:
            named: Tensor = self._source(self._held.contexts())
            return named
        return offered(self._source, self.contexts, hidden)


class _Held:
    """Ids of B sequences as the operator reads them, those that are no int32 as none."""

    def __init__(self, source: Any, batch: int) -> None:
        own = source.offsets if type(source) is SuccessorTable else source.allowed
        self.device, self.window = own.device, window_of(source)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device="cpu")
        self._lengths = self.lengths.numpy()
        self.ids = torch.empty(batch, 0, dtype=torch.int32, device="cpu")
        self._ids = self.ids.numpy()

    def _make_room(self, capacity: int) -> None:
        ids = torch.zeros(len(self.lengths), capacity, dtype=torch.int32, device="cpu")
        ids[:, : self.ids.shape[1]] = self.ids
        self.ids, self._ids = ids, ids.numpy()

    def put(self, b: int, start: int, tokens: Sequence[int]) -> None:
        end = start + len(tokens)
        if end > self.ids.shape[1]:
            self._make_room(end + end // 2)
        for place, token in enumerate(tokens, start):
            self._ids[b, place] = token if 0 <= token < 1 << 31 else -1
        self._lengths[b] = end

    def contexts(self) -> KeptContexts:
        if self.device.type == "cpu":
            return KeptContexts(self.ids, lengths=self.lengths)
        window = min(self.window, int(self._lengths.max(initial=0)))
        ends = np.full((len(self.ids), window), -1, np.int32)
        for own, ids, length in zip(ends, self._ids, self._lengths.tolist(), strict=True):
            shown = min(window, length)
            own[window - shown :] = ids[length - shown : length]
        return KeptContexts(upload(ends, self.device))
