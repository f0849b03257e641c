"""Siblings of RSD are drawn without replacement, and tried as often as the paper says.

Fixed seeds, false-alarm rate 1e-6 each. Whole texts: tests/decoding/test_rsd.py.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

from studies.recursive_rejection import Beam, beam_search_step, gumbel_top_k, recursive_rejection
from tests.proof.statistics.chi_square import assert_caught, assert_fits
from tests.proof.statistics.markov import agreeing

COUNT = 100_000


def gumbel(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return -torch.empty(shape, dtype=torch.float64).exponential_(generator=source).log()


@pytest.mark.parametrize("agreement", [0.2, 0.8])
def test_a_beam_and_top_k_draw_the_same_siblings(agreement: float) -> None:
    """The children of one node: Plackett and Luce's probability of each ordered pair."""
    q = agreeing(agreement, 5).drafter[3].double().softmax(0)
    log_q = q.log().expand(COUNT, 1, -1)
    noise = gumbel(tuple(log_q.shape), torch.Generator().manual_seed(2))
    pairs = q[:, None] * q[None, :] / (1 - q)[:, None] * (1 - torch.eye(len(q)))
    drawn = gumbel_top_k(log_q, noise, 2)[:, 0]
    beam = beam_search_step(log_q, Beam.root(log_q), noise, 2)
    assert torch.equal(beam.tokens, drawn)
    assert bool((beam.perturbed[:, 0] == 0).all())  # the root's own
    counts = torch.bincount(drawn[:, 0] * len(q) + drawn[:, 1], minlength=len(q) ** 2)
    assert_fits(counts, pairs)
    assert_caught(counts, torch.outer(q, q))  # the control: with replacement


def test_the_probability_that_some_sibling_is_accepted_is_recursive() -> None:
    """Of two siblings of three tokens, by hand; within 5 standard errors."""
    p, q = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    rejected = 0.0
    for x in range(3):
        miss = max(q[x] - p[x], 0.0)  # drawn and rejected
        left = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
        second = q.clone()
        second[x] = 0
        rejected += float(miss * (1 - torch.minimum(left, second / second.sum()).sum()))
    source = torch.Generator().manual_seed(3)
    log_q = q.log().expand(COUNT, -1)
    siblings = gumbel_top_k(log_q, gumbel(tuple(log_q.shape), source), 2)
    coins = torch.rand(COUNT, 2, dtype=torch.float64, generator=source)
    accepted, _ = recursive_rejection(p.expand(COUNT, -1), log_q.exp(), siblings, coins)
    error = math.sqrt(rejected * (1 - rejected) / COUNT)
    assert abs(float((accepted < 0).double().mean()) - rejected) < 5 * error
