"""The test of the tests: what is right passes as often as stated, what is wrong is caught."""

from __future__ import annotations

import torch

from tests.generators import generator, zipf
from tests.proof.statistics.chi_square import assert_caught, assert_fits, histogram, p_value


def sample(probs: torch.Tensor, draws: int, seed: int) -> torch.Tensor:
    return torch.multinomial(probs, draws, replacement=True, generator=generator(seed))


def test_p_values_of_right_draws_are_uniform() -> None:
    """400 samples; a right implementation fails with probability below 1e-6 (Kolmogorov bound)."""
    probs = zipf(200)
    values = [p_value(histogram(sample(probs, 3000, seed), 200), probs) for seed in range(400)]
    ranks = (torch.arange(400) + 0.5) / 400
    largest_gap = (torch.tensor(values).sort().values - ranks).abs().max()
    assert largest_gap < 0.137  # 2 exp(-2 n d^2) = 1e-6


def test_a_shift_of_two_percent_is_caught() -> None:
    probs = zipf(50)
    wrong = probs.clone()
    wrong[0], wrong[1] = wrong[0] - 0.02, wrong[1] + 0.02
    assert_caught(histogram(sample(wrong, 50_000, 1), 50), probs)
    assert_fits(histogram(sample(probs, 50_000, 1), 50), probs)
