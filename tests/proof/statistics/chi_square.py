"""Pearson's test of counts against exact probabilities.

A right implementation fails one test with probability `FALSE_ALARM` (1e-6); a negative control has
to be beyond doubt, `CERTAIN` (1e-12). Seeds are fixed, so nothing here fails now and then.
"""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor

from tests.tolerances import CERTAIN, FALSE_ALARM

# Cells that expect fewer are pooled: the chi-square approximation needs more in its far tail than
# the customary five.
SMALLEST_EXPECTED = 20.0


def histogram(outcomes: Tensor, size: int) -> Tensor:
    """How often each of ``0 .. size - 1`` occurs."""
    return torch.bincount(outcomes.flatten(), minlength=size)


def p_value(counts: Tensor, probs: Tensor) -> float:
    """The probability that a sample of ``probs`` looks at least as odd as ``counts``."""
    counts, probs = counts.flatten().double(), probs.flatten().double()
    assert counts.shape == probs.shape
    assert abs(float(probs.sum()) - 1) < 1e-5
    if counts[probs == 0].any():
        return 0.0
    total = counts.sum()
    ascending = probs.argsort()
    counts, expected = counts[ascending], probs[ascending] * (total / probs.sum())
    # The rarest cells become one, as small as it can be while large enough.
    pooled = int((expected.cumsum(0) < SMALLEST_EXPECTED).sum()) + 1
    pooled = max(pooled, int((expected < SMALLEST_EXPECTED).sum()))
    counts = torch.cat([counts[:pooled].sum()[None], counts[pooled:]])
    expected = torch.cat([expected[:pooled].sum()[None], expected[pooled:]])
    if counts.numel() < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(float(statistic), counts.numel() - 1))


def assert_fits(counts: Tensor, probs: Tensor) -> None:
    p = p_value(counts, probs)
    assert p >= FALSE_ALARM, f"a right implementation looks like this with probability {p:.1e}"


def assert_caught(counts: Tensor, probs: Tensor) -> None:
    """The negative control: the counts are wrong, and the test has to see it."""
    p = p_value(counts, probs)
    assert p <= CERTAIN, f"what is wrong passes: p-value {p:.1e}"
