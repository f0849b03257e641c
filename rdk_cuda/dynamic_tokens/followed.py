"""Sources of dynamic tokens beside sequences that grow, of which they read only what is new."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from .sources import CombinedTokens, DynamicTokens, RecentTokens, offered, reads_hidden
from .successors import SuccessorTable

_REMEMBERED = 32  # states of a sequence's recent tokens that it can be cut back to at once
_KNOWN = 4096  # last tokens whose successors are at hand
_OWN = RecentTokens, SuccessorTable  # no types that inherit from them: these may name anything


class Followed:
    """A source beside B sequences that grow and are cut back; itself a source, for those alone.

    It names what the source does, and takes only what is new. So the work of `RecentTokens`, of a
    `SuccessorTable` and of both in `CombinedTokens` goes by what is new. It is done on the host,
    and what is named is copied to the source's device without waiting for that. Any other source is
    called with the sequences as they are by now, B lists that stay the same objects. If it has a
    method `follow`, that is called once, with B, and what it returns is called in its place: with
    `kept` and `new`, as `read`, and `hidden` if the source reads it.

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
        self._rows: list[_Rows] = []
        self._parts: list[Followed] = []
        combined = type(given) is CombinedTokens
        parts: Sequence[Any] = given.sources if combined else (given,)
        if len(parts) <= 2 and all(type(part) in _OWN for part in parts):
            limit = _on_host(given.allowed) if combined else None
            self._rows = [_rows(part, batch_size, limit) for part in parts]
        elif combined:
            given, self._parts = copy.copy(given), [Followed(part, batch_size) for part in parts]
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
        for context, length, tokens in zip(self.contexts, kept, new, strict=True):
            if length != len(context):
                if not 0 <= length < len(context):
                    needs = f"0 to the sequence's length, {len(context)}"
                    b = next(b for b, own in enumerate(self.contexts) if own is context)
                    raise ValueError(f"Followed.read: kept[{b}] is {length}; needs {needs}")
                del context[length:]
            context += tokens
        self._change = kept, new
        for part in self._parts:
            part.read(kept, new)
        self._named = [rows(self.contexts, kept, new) for rows in self._rows]

    def __call__(self, contexts: object = None, *, hidden: Tensor | None = None) -> Tensor:
        """Name what the source does behind the sequences, once for each `read`: `[B, C]`.

        Args:
            contexts: not looked at.
            hidden: for a source that reads it.
        """
        if self._own is not None:
            options = {"hidden": hidden} if reads_hidden(self._source) else {}
            return self._own(*self._change, **options)
        if not self._rows:
            return offered(self._source, self.contexts, hidden)
        if len(self._named) == 1:
            data = [data for data, _ in self._named[0]]
        else:
            data = [
                first + (second.data if ids.isdisjoint(second.ids) else second.without(ids))
                for (first, ids), second in zip(*self._named, strict=True)
            ]
        at = self._source.offsets if type(self._source) is SuccessorTable else self._source.allowed
        return _packed(data, self._source.width, at.device)


class _Row(NamedTuple):
    data: bytes
    ids: frozenset[int]

    def without(self, ids: frozenset[int]) -> bytes:
        left = [token for token in memoryview(self.data).cast("i") if token not in ids]
        return array("i", left).tobytes()


_TABLES: WeakKeyDictionary[Any, dict[bytes | None, tuple[Any, Callable[[int], _Row]]]]
_TABLES = WeakKeyDictionary()
"""By the limit: the tensors of a table with their versions, and what names its tokens. All that
follow the table, in every call, share it."""

_Rows = Callable[[Sequence[list[int]], Sequence[int], Sequence[Sequence[int]]], list[_Row]]


def _row(ids: Sequence[int], limit: bytes | None) -> _Row:
    if limit is not None:
        ids = [token for token in ids if token < len(limit) and limit[token]]
    return _Row(array("i", ids).tobytes(), frozenset(ids))


def _rows(source: Any, batch: int, limit: bytes | None) -> _Rows:
    if isinstance(source, RecentTokens):
        return _RecentRows(source, batch, limit)
    tables, tensors = _TABLES.setdefault(source, {}), (source.offsets, source.tokens)
    now = [(own, -1 if own.is_inference() else own._version) for own in tensors]
    before, row = tables.get(limit, ((), None))
    same = [a is b and old == new for (a, old), (b, new) in zip(before, now, strict=False)]
    if row is None or not all(same):
        row = _successors(source, limit)
        tables[limit] = now, row
    return lambda contexts, kept, new: [row(each[-1] if each else -1) for each in contexts]


def _successors(source: SuccessorTable, limit: bytes | None) -> Callable[[int], _Row]:
    offsets, tokens = source.offsets.cpu().numpy(), source.tokens.cpu().numpy()
    if limit is not None:
        named = np.zeros(max(len(limit), len(offsets)), bool)
        named[: len(limit)] = np.frombuffer(limit, bool)
        offsets = np.concatenate([[0], named[tokens].cumsum()])[offsets]
        tokens = tokens[named[tokens]]

    @lru_cache(_KNOWN)
    def row(last: int) -> _Row:
        known = 0 <= last < len(offsets) - 1
        own = tokens[offsets[last] : offsets[last + 1]] if known else tokens[:0]
        return _Row(own.tobytes(), frozenset(own.tolist()))

    return row


_Lately: TypeAlias = tuple[int, dict[int, int], _Row]
"""Recent tokens of a sequence: how long it was when they became these; the last place of each
distinct one, the oldest first; and what is named of them."""


class _RecentRows:
    def __init__(self, source: RecentTokens, batch: int, limit: bytes | None) -> None:
        self.width, self.window, self.own = source.width, source.window, _on_host(source.allowed)
        self.limit = None if limit == self.own else limit
        self.states: list[list[_Lately]] = [[] for _ in range(batch)]  # the newest last

    def __call__(
        self, contexts: Sequence[list[int]], kept: Sequence[int], new: Sequence[Sequence[int]]
    ) -> list[_Row]:
        own, size, window, named = self.own, len(self.own), self.window, list[_Row]()
        for states, context, start, tokens in zip(self.states, contexts, kept, new, strict=True):
            while states and states[-1][0] > start:
                states.pop()
            if not states or len(tokens) > window:
                first = max(0, len(context) - window)
                states[:] = [self._state({}, context[first:], first)]
            else:
                places, oldest = states[-1][1], start - window
                for place, token in enumerate(tokens, oldest):
                    # Each token that comes lets the oldest go, if that has not come again.
                    if (0 <= token < size and own[token]) or (
                        place >= 0 and places.get(context[place]) == place
                    ):
                        states.append(self._state(places, [token], place + window))
                        places = states[-1][1]
                        del states[:-_REMEMBERED]
            named.append(states[-1][2])
        return named

    def _state(self, before: dict[int, int], tokens: Sequence[int], start: int) -> _Lately:
        places, length = before.copy(), start + len(tokens)
        for place, token in enumerate(tokens, start):
            if 0 <= token < len(self.own) and self.own[token]:
                places.pop(token, None)
                places[token] = place
        oldest = next(iter(places), -1)
        if places.get(oldest, length) < length - self.window:
            del places[oldest]
        return length, places, _row([*islice(reversed(places), self.width)], self.limit)


def _on_host(allowed: Tensor) -> bytes:
    return allowed.cpu().numpy().tobytes()


def _packed(rows: Sequence[bytes], width: int, device: torch.device) -> Tensor:
    """`[B, width]` int32 of B rows of int32, cut off or filled up with -1."""
    size = 4 * width
    memory = bytearray().join(
        [row[:size] if len(row) >= size else row.ljust(size, b"\xff") for row in rows]
    )
    if not memory:
        return torch.empty(0, width, dtype=torch.int32, device=device)
    packed = torch.frombuffer(memory, dtype=torch.int32).view(-1, width)
    if device.type == "cuda":  # from other memory the copy would wait for what the GPU has to do
        return packed.pin_memory().to(device, non_blocking=True)
    return packed.to(device)
