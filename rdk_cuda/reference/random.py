"""Random numbers, and draws from a softmax, as section 5 of DESIGN says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 1024
TRIES = 32
# Purposes of random numbers, section 5.
STEP, DRAFT, ACCEPT, RESIDUAL, DIRECT, BONUS, BLOCK = range(7)

_MASK = 0xFFFFFFFF
_Integer = TypeVar("_Integer", int, Tensor)
Words = tuple[int, int, int, int]


def philox(
    seed: _Integer, position: _Integer, purpose: int, attempt: int, branch: int = 0
) -> tuple[_Integer, _Integer, _Integer, _Integer]:
    """Make four random 32-bit words by Philox4x32-10 (Salmon et al. 2011), keyed as in section 5.

    Args:
        seed, position: 64-bit, two ints or two int64 tensors that broadcast.
        purpose, attempt: the third and fourth word of the counter.
        branch: which of several things that a step decides at this position; modulo 2^24.

    Example:
        >>> [f"{word:08x}" for word in philox(0, 0, STEP, 0)]
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    c0: Any = position & _MASK
    c1: Any = (position >> 32) & _MASK
    c2: Any = (purpose | branch << 8) & _MASK
    c3: Any = attempt
    for _ in range(10):
        # An int64 product wraps, but its 64 bits are those of the unsigned product.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _MASK) ^ c1 ^ k0, b & _MASK
        c2, c3 = ((a >> 32) & _MASK) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(word: int) -> float:
    """Make a multiple of 2^-24 in [0, 1): exact in float32 and never 1."""
    return (word >> 8) * 2.0**-24


def below(
    decision: str, u: float, left: Tensor, right: Tensor, record: Callable[[str, float], None]
) -> bool:
    """Tell whether ``u * left < right``; the outcome turns where u is ``right / left``."""
    record(decision, abs(u - float(right / left)) if left > 0 else math.inf)
    return bool(u * left < right)


@dataclass
class Trace:
    """Records how near each random decision came to another outcome.

    A margin is a distance in units of the uniform number: 1e-6 means that a uniform 1e-6 away would
    have decided otherwise. Integer comparisons are exact and leave no margin.
    """

    decisions: list[tuple[int, str, float]] = field(default_factory=list)

    def add(self, row: int, decision: str, margin: float) -> None:
        """Record a decision of a row (of a sequence, in `verify`)."""
        self.decisions.append((row, decision, margin))

    def margins(self, rows: int) -> Tensor:
        """Find each row's smallest margin, float64 ``[rows]``; inf where nothing was random."""
        smallest = torch.full((rows,), math.inf, dtype=torch.float64, device="cpu")
        for row, _, margin in self.decisions:
            smallest[row] = min(float(smallest[row]), margin)
        return smallest


def _chunks(weights: Tensor, static: int) -> Tensor:
    """``[columns] -> [chunks, CHUNK]``: the columns from ``static`` on start a new chunk."""
    parts = weights[:static], weights[static:]
    return torch.cat([pad(part, (0, -part.shape[0] % CHUNK)) for part in parts]).view(-1, CHUNK)


def draw(
    weights: Tensor,
    words: Words,
    record: Callable[[float], None],
    static: int | None = None,
    scale: Tensor | None = None,
) -> int:
    """Draw in two levels, as in section 5; the margin is relative to the mass of ``scale``."""
    static = weights.shape[0] if static is None else static
    chunks = _chunks(weights, static)
    masses = chunks.sum(1) if scale is None else _chunks(scale, static).sum(1)
    chunk, chunk_margin = _first_exceeding(chunks.sum(1), uniform(words[0]), masses.sum())
    lane, lane_margin = _first_exceeding(chunks[chunk], uniform(words[1]), masses[chunk])
    column = chunk * CHUNK + lane
    record(min(chunk_margin, lane_margin))
    return column if column < static else column - -static % CHUNK


def _first_exceeding(weights: Tensor, u: float, mass: Tensor) -> tuple[int, float]:
    """Find the first index whose running sum exceeds ``u * total``; its weight is above zero."""
    sums = weights.cumsum(0)
    threshold = u * sums[-1]
    index = int(torch.searchsorted(sums, threshold, right=True))
    boundaries = sums[(sums > 0) & (sums < sums[-1])]
    if boundaries.numel() == 0:
        return index, math.inf
    return index, float((boundaries - threshold).abs().min() / mass)
