"""Predictions without a network: n-grams of a training text, and what a context has said so far.

Large models are sure of the names that a context has brought up; the demo's small ones are not.
These are (discounting: Ney, Essen and Kneser 1994; caches: Kuhn and De Mori 1990), see
`sharp_pair.py`. Contexts are `[n, w]` integers: the last w tokens, newest last, -1 in front where
there are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["DISCOUNT", "ContextCache", "NGrams"]

DISCOUNT = 0.75  # taken off every count of an n-gram, for what was never seen


class NGrams:
    """Interpolated n-grams with absolute discounting, down to unigrams with one added to each.

    With `N(h)` and `t(h)` the number of tokens and of distinct tokens behind a context h,

        P(x | h) = max(count(h x) - D, 0) / N(h) + D t(h) / N(h) * P(x | h without its first token)

    and the shorter context alone where h was never seen.

    Args:
        documents: token ids; no n-gram spans two of them.
        size: V; `V^order` numbers the n-grams in 63 bits, so at most 2 million for trigrams.
        order: n, 1 for unigrams.

    Example:
        >>> bigrams = NGrams([[0, 1, 0, 1, 0, 2]], size=3, order=2)
        >>> bigrams.probs(torch.tensor([[0]]))  # behind 0: 1 twice, 2 once
        tensor([[0.2222, 0.5833, 0.1944]])
    """

    def __init__(self, documents: Sequence[Sequence[int]], size: int, order: int) -> None:
        if not documents or order < 1 or size**order >= 1 << 63:
            raise ValueError(
                f"NGrams: {len(documents)} documents, order {order} and {size} tokens; needs some "
                "text, and n-grams that can be numbered in 63 bits"
            )
        texts = [np.asarray(document, dtype=np.int64) for document in documents]
        self.size, self.order = size, order
        counts = np.bincount(np.concatenate([*texts, np.arange(size)]), minlength=size)
        self.unigrams = torch.from_numpy(counts / counts.sum()).float()
        self.counted = {length: count_ngrams(texts, size, length) for length in range(2, order + 1)}

    def probs(self, contexts: Tensor) -> Tensor:
        """From contexts `[n, w]` to the next token's probabilities, `[n, V]` float32."""
        left = torch.ones(len(contexts))  # what longer contexts leave to shorter ones
        cells, shares = [], []
        for length in range(self.order, 1, -1):
            keys, counts = self.counted[length]
            numbers = self.numbers(contexts, length - 1)
            first = torch.searchsorted(keys, numbers * self.size)
            types = torch.searchsorted(keys, (numbers + 1) * self.size) - first
            rows = torch.arange(len(first)).repeat_interleave(types)
            entries = torch.arange(len(rows)) - (types.cumsum(0) - types - first)[rows]
            totals = torch.zeros(len(first)).index_add_(0, rows, counts[entries])
            cells.append(rows * self.size + keys[entries] % self.size)
            shares.append((counts[entries] - DISCOUNT) / totals[rows] * left[rows])
            left = left * torch.where(types > 0, DISCOUNT * types / totals, 1.0)
        probs = left[:, None] * self.unigrams
        for cell, share in zip(cells, shares, strict=True):
            probs.view(-1).index_add_(0, cell, share)
        return probs

    def numbers(self, contexts: Tensor, length: int) -> Tensor:
        """The last `length` tokens of each context as a number; -1 where there are fewer."""
        if contexts.shape[1] < length:
            return torch.full((len(contexts),), -1)
        last = contexts[:, -length:].long()
        powers = self.size ** torch.arange(length - 1, -1, -1)
        return ((last * powers).sum(1)).where((last >= 0).all(1), -1)


def count_ngrams(
    texts: Sequence[npt.NDArray[np.int64]], size: int, length: int
) -> tuple[Tensor, Tensor]:
    """The distinct n-grams as numbers of base `size`, int64, sorted, and their counts, float32."""
    powers = size ** np.arange(length - 1, -1, -1, dtype=np.int64)
    long_enough = [text for text in texts if len(text) >= length]
    windows = (np.lib.stride_tricks.sliding_window_view(text, length) for text in long_enough)
    numbers = [np.zeros(0, np.int64), *(window @ powers for window in windows)]
    keys, counts = np.unique(np.concatenate(numbers), return_counts=True)
    return torch.from_numpy(keys), torch.from_numpy(counts).float()


@dataclass(frozen=True)
class ContextCache:
    """What was said lately, above all what followed the last tokens where they stood before.

    It starts with the tokens of the window, each weighted by `decay^age`. For m = 1 to `matches`,
    the tokens that followed earlier occurrences of the last m tokens are weighted likewise, and
    what there was before joins them as `trust` further tokens.

    Attributes:
        size: V.
        window: how many of the last tokens are looked at; nothing before them counts.

    Example:
        >>> cache = ContextCache(size=3, window=8, decay=1.0, matches=1, trust=0.5)
        >>> cache.probs(torch.tensor([[0, 1, 0]]))  # 0 was followed by 1 once
        tensor([[0.2222, 0.7778, 0.0000]])
    """

    size: int
    window: int
    decay: float
    matches: int
    trust: float

    def probs(self, contexts: Tensor) -> Tensor:
        """From contexts `[n, w]` to the next token's probabilities, `[n, V]` float32.

        Behind no token at all every token is as likely.
        """
        contexts = contexts[:, -self.window :].long()
        width = contexts.shape[1]
        there = contexts >= 0
        recent = self.decay ** torch.arange(width - 1, -1, -1.0) * there
        weights = recent / recent.sum(1, keepdim=True).clamp_min(1e-30)
        # Whether the tokens up to each place, itself included, are those up to the last.
        matching = there.clone()
        matching[:, -1] = False
        for back in range(self.matches):
            same = contexts == contexts[:, width - 1 - back, None] if back < width else ~there
            matching[:, :back] = False
            matching[:, back:] &= (same & there)[:, : width - back]
            followed = torch.nn.functional.pad((recent * matching)[:, :-1], (1, 0))
            weights = (followed + self.trust * weights) / (
                followed.sum(1, keepdim=True) + self.trust
            )
        probs = torch.zeros(len(contexts), self.size)
        probs[~there.any(1)] = 1 / self.size
        return probs.scatter_add_(1, contexts.clamp_min(0), weights)
