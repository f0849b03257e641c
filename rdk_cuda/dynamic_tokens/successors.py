"""Which pruned tokens are likely to follow the last one: a source of dynamic tokens.

Corpus counts, or mean target probabilities, become a table of each token's likeliest pruned
successors, which is looked up on the device (DESIGN section 2, "Dynamic tokens").
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_shape, check_tensor, whole_number
from ..files import TensorFile
from ..vocabulary import Vocabulary
from .sources import Contexts, is_pruned, named

_PENDING = 1 << 22  # pairs that wait to be merged at once, 64 MB
_MOST_PAIRS = 1 << 23  # 16 bytes each; a merge takes about 100 for each of these and of the new


class SuccessorCounts:
    """How often each token follows each other one, in bounded memory.

    Exact while no more than 2^23 distinct pairs have occurred. From then on approximate: at
    each merge, of some million pairs, the distinct pairs with the smallest weight are forgotten,
    among equals an even selection over the vocabulary, and if they occur again they start from 0.
    So a pair's weight is never too large, and that of a frequent pair hardly too small. The same
    calls give the same counts.

    Args:
        vocabulary_size: V, of the target.

    Attributes:
        exact: whether no pair has been forgotten.

    Raises:
        ValueError: a vocabulary size outside 1 to 2^31 - 1.

    Example:
        >>> counts = SuccessorCounts(vocabulary_size=10)
        >>> counts.add([1, 7, 1, 7, 1, 8])
        >>> [pair.tolist() for pair in counts.pairs()]
        [[1, 1, 7], [7, 8, 1], [2.0, 1.0, 2.0]]
    """

    def __init__(self, vocabulary_size: int) -> None:
        size = whole_number("SuccessorCounts", "vocabulary_size", vocabulary_size, 1, 2**31 - 1)
        self.vocabulary_size = size
        self.exact = True
        # A pair is last * V + next. Those held are ascending and distinct.
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        self._held = nothing, nothing.double()
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._pending_pairs = 0

    def add(self, tokens: Sequence[int] | Tensor) -> None:
        """Count the pairs of neighbours in one document.

        Args:
            tokens: `[n]` integer target ids, any n; a document of fewer than two has no pairs.

        Raises:
            ValueError: another shape or dtype, or an id outside `[0, V)`; nothing is counted then.
        """
        ids = torch.as_tensor(tokens, device="cpu")
        if ids.numel():  # without elements, a list has no dtype
            ids = self._checked_ids("add: tokens", ids, "n")
            ones = torch.ones(max(ids.numel() - 1, 0), dtype=torch.float64, device="cpu")
            self._add(ids[:-1] * self.vocabulary_size + ids[1:], ones)

    def add_probs(self, last_tokens: Tensor, targets: Tensor, probs: Tensor) -> None:
        """Add the target's probabilities instead of what the corpus happens to have.

        Args:
            last_tokens: `[n]` integers, the last token of each context.
            targets: `[n, m]` integers, some next tokens, as the target's likeliest.
            probs: `[n, m]` floats, what the target gives to them.

        Raises:
            ValueError: other shapes or dtypes, an id outside `[0, V)`, or a probability that is
                negative, infinite or NaN; nothing is added then.

        Example:
            >>> counts = SuccessorCounts(vocabulary_size=10)
            >>> targets, probs = torch.tensor([[8, 7]]), torch.tensor([[0.5, 0.0]])
            >>> counts.add_probs(torch.tensor([1]), targets, probs)
            >>> [pair.tolist() for pair in counts.pairs()]
            [[1], [8], [0.5]]
        """
        last = self._checked_ids("add_probs: last_tokens", last_tokens, "n")
        following = self._checked_ids("add_probs: targets", targets, len(last), "m")
        name, weights = "SuccessorCounts.add_probs: probs", probs.detach().to("cpu", torch.float64)
        check_shape(name, weights, *following.shape)
        check_entries(name, weights, (weights >= 0) & weights.isfinite(), "probabilities")
        likely = weights > 0
        self._add((last[:, None] * self.vocabulary_size + following)[likely], weights[likely])

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all pairs: last token, next token (int64, ascending by both), weight (float64)."""
        self._merge()
        pairs, weights = self._held
        return pairs // self.vocabulary_size, pairs % self.vocabulary_size, weights.clone()

    def _checked_ids(self, name: str, ids: Tensor, *shape: int | str) -> Tensor:
        check_tensor(f"SuccessorCounts.{name}", ids, "integers", *shape)
        ids = ids.detach().to("cpu", torch.int64)
        inside = (ids >= 0) & (ids < self.vocabulary_size)
        needs = f"a target id in [0, {self.vocabulary_size})"
        check_entries(f"SuccessorCounts.{name}", ids, inside, needs)
        return ids

    def _add(self, pairs: Tensor, weights: Tensor) -> None:
        self._pending.append((pairs, weights))
        self._pending_pairs += len(pairs)
        if self._pending_pairs >= _PENDING:
            self._merge()

    def _merge(self) -> None:
        if not self._pending:
            return
        pairs, weights = map(torch.cat, zip(self._held, *self._pending, strict=True))
        self._pending, self._pending_pairs = [], 0
        # Stable, so that equal pairs are added up in the order in which they came.
        pairs, order = pairs.sort(stable=True)
        pairs, place = pairs.unique_consecutive(return_inverse=True)
        sums = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
        weights = sums.index_add_(0, place, weights[order])
        if len(pairs) > _MOST_PAIRS:
            kept = _heaviest(weights, _MOST_PAIRS)
            pairs, weights, self.exact = pairs[kept], weights[kept], False
        self._held = pairs, weights


def _heaviest(weights: Tensor, count: int) -> Tensor:
    forgotten = weights.kthvalue(len(weights) - count).values  # the largest of them
    chosen, equal = weights > forgotten, (weights == forgotten).nonzero()[:, 0]
    room = count - int(chosen.sum())
    chosen[equal[torch.arange(room, device="cpu") * len(equal) // room]] = True
    return chosen


class SuccessorTable:
    """The likeliest pruned successors of each token, best first: a source of dynamic tokens.

    Kept as CSR, 4 bytes for each successor and for each target token.

    Args:
        offsets: `[V_t + 1]` int32, where the successors of each token begin and end.
        tokens: `[nnz]` int32 target ids, distinct within a row.
        width: C, how many columns a result has: no row is longer, and many may be shorter.

    Raises:
        ValueError: dtypes, shapes, offsets that fall, ids outside `[0, V_t)`, a token twice in a
            row, or a row longer than the width.

    Example:
        >>> vocabulary = Vocabulary([0, 1], target_size=10)
        >>> counts = SuccessorCounts(vocabulary.target_size)
        >>> counts.add([1, 7, 1, 8, 1, 8, 0])
        >>> table = SuccessorTable.from_counts(counts, vocabulary, width=3)
        >>> table([[5, 1], [8]])
        tensor([[ 8,  7, -1],
                [-1, -1, -1]], dtype=torch.int32)
    """

    def __init__(self, offsets: Tensor, tokens: Tensor, width: int) -> None:
        _check_table(offsets, tokens, width)
        self.offsets, self.tokens, self.width = offsets, tokens, width

    @classmethod
    def from_counts(
        cls, counts: SuccessorCounts, vocabulary: Vocabulary, width: int = 64
    ) -> SuccessorTable:
        """Keep the `width` heaviest pruned successors of each token; of equals the lowest ids.

        Raises:
            ValueError: counts over a vocabulary of another size, or a width outside 1 to V_t.
        """
        size = vocabulary.target_size
        if counts.vocabulary_size != size:
            raise ValueError(
                f"SuccessorTable.from_counts: counts has {counts.vocabulary_size} tokens and "
                f"vocabulary {size} target tokens; needs the same"
            )
        width = whole_number("SuccessorTable", "width", width, 1, size)
        last, following, weights = counts.pairs()
        offered = is_pruned(vocabulary)[following]
        last, following, weights = last[offered], following[offered], weights[offered]
        # Both sorts are stable: by last token, then the heaviest first, then the lowest id.
        order = weights.argsort(descending=True, stable=True)
        order = order[last[order].argsort(stable=True)]
        lengths = torch.bincount(last, minlength=size)
        rank = torch.arange(len(last), device="cpu")
        rank -= (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        offsets = torch.nn.functional.pad(lengths.clamp(max=width).cumsum(0), (1, 0)).int()
        return cls(offsets, following[order].int()[rank < width], width)

    def to(self, device: torch.device | str) -> SuccessorTable:
        """Move the table to another device."""
        moved = copy.copy(self)
        moved.offsets, moved.tokens = self.offsets.to(device), self.tokens.to(device)
        return moved

    def __call__(self, contexts: Contexts) -> Tensor:
        """Return the successors of each sequence's last token: `[B, width]` int32, best first.

        -1 where there are no more: everywhere for an empty sequence or a last id outside of
        `[0, V_t)`. Contexts are sequences of target ids, or a padded tensor `[B, L]` of integers on
        the table's device, of which nothing is read back.
        """
        return named("SuccessorTable", contexts, self.width, None, table=self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file atomically; `load` gives the same table back."""
        tensors = {"offsets": self.offsets, "tokens": self.tokens}
        sizes = {"target_size": self.offsets.numel() - 1, "successors": self.tokens.numel()}
        _FILE.write(Path(path), tensors, {**sizes, "width": self.width})

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> SuccessorTable:
        """Read what `save` wrote, checks all of it, and moves it to `device`.

        Raises:
            ValueError: the file is truncated, altered, of another kind or of a newer version.
            OSError: it cannot be opened.
        """
        tensors, metadata = _FILE.read(Path(path))
        width = metadata.get("width", "")
        try:
            if not width.isdecimal():
                raise ValueError(f"the file says width = {width!r}; needs a number")
            return cls(**tensors, width=int(width)).to(device)
        except ValueError as error:
            raise ValueError(f"SuccessorTable.load: {path}: {error}") from error


_FILE = TensorFile("SuccessorTable", "rdk_cuda.successors", 1, ("offsets", "tokens"), ValueError)


def _check_table(offsets: Tensor, tokens: Tensor, width: int) -> None:
    for name, tensor in (("offsets", offsets), ("tokens", tokens)):
        check_tensor(f"SuccessorTable: {name}", tensor, torch.int32, "n")
    size, count = offsets.numel() - 1, tokens.numel()
    if size < 1:
        raise ValueError(f"SuccessorTable: offsets has {size + 1} entries; needs V_t + 1 >= 2")
    # A file's width decides how much memory a lookup takes, so it has a bound.
    whole_number("SuccessorTable", "width", width, 1, size)
    lengths = offsets.long().diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != count or int(lengths.min()) < 0:
        raise ValueError(
            f"SuccessorTable: offsets runs from {int(offsets[0])} to {int(offsets[-1])}, its "
            f"smallest step is {int(lengths.min())}; needs to rise from 0 to {count}"
        )
    fits = lengths <= width
    check_entries("SuccessorTable: the length of row", lengths, fits, f"at most width = {width}")
    inside = (tokens >= 0) & (tokens < size)
    check_entries("SuccessorTable: tokens", tokens, inside, f"a target id in [0, {size})")
    rows = torch.arange(size, device=offsets.device).repeat_interleave(lengths)
    entries = (rows * size + tokens).sort().values
    twice = entries[1:][entries[1:] == entries[:-1]]
    if twice.numel():
        row, token = divmod(int(twice[0]), size)
        raise ValueError(
            f"SuccessorTable: row {row} has token {token} twice; needs each at most once"
        )
