"""Pearson's chi-square test with nothing but torch."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_EXPECTED = 10.0  # draws in each cell


class ChiSquare(NamedTuple):
    """Pearson's test of draws against a distribution."""

    statistic: float
    degrees: int
    probability: float

    @property
    def chance(self) -> str:
        """The probability, to read."""
        tiny = 1e-99
        return f"p = {self.probability:.2g}" if self.probability >= tiny else f"p < {tiny:g}"


def chi_square(draws: Tensor, probs: Tensor) -> ChiSquare:
    """Whether draws follow `probs`; tokens with few expected draws share one cell."""
    expected = probs * len(draws)
    counts = torch.bincount(draws, minlength=len(probs)).double()
    own = expected >= LEAST_EXPECTED
    cells = torch.stack([counts, expected])
    cells = torch.cat([cells[:, own], cells[:, ~own].sum(1, keepdim=True)], dim=1)
    if cells[1, -1] < LEAST_EXPECTED:
        cells = torch.cat([cells[:, :-2], cells[:, -2:].sum(1, keepdim=True)], dim=1)
    if cells.shape[1] == 1:
        return ChiSquare(0.0, 0, 1.0)
    observed, mean = cells
    statistic = ((observed - mean) ** 2 / mean).sum()
    degrees = torch.tensor(len(mean) - 1, dtype=torch.float64, device="cpu")
    probability = torch.special.gammaincc(degrees / 2, statistic / 2)
    return ChiSquare(float(statistic), int(degrees), float(probability))
