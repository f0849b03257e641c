"""Verification by block is lossless, and accepts what the paper's sums accept.

Chi-square tests of whole texts of K + 1 tokens against the target's joint distribution, and z-tests
of the mean accepted length, whose exact value on the drafted paths is known. Fixed seeds,
false-alarm rate 1e-6 each.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from scipy import stats
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests.proof.statistics.chi_square import assert_caught, assert_fits
from tests.proof.statistics.markov import ORDER, Loop, Models, agreeing
from tests.proof.statistics.sums import BySums, prefix_factors, token_factors
from tests.tolerances import CERTAIN, FALSE_ALARM

SEQUENCES, DRAFTS, SIZE = 30_000, 3, 4


WRONG: dict[str, dict[str, bool]] = {
    "the paper's rule": {},
    "one coin for all prefixes": {"one_coin": True},
    "the residual without the factor": {"plain_residual": True},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_rule_by_sums_and_its_two_mistakes(wrong: str) -> None:
    models = Models.random(Affinity.intersection(Vocabulary.identity(SIZE)), seed=1)
    counts = BySums(models, DRAFTS, **WRONG[wrong]).texts(SEQUENCES, DRAFTS + 1)
    check = assert_caught if WRONG[wrong] else assert_fits
    check(counts, models.exact(DRAFTS + 1))


# ------------------------------------------------------------------------- accepted length


def one_step(loop: Loop, sequences: int, first_seed: int) -> tuple[Tensor, Tensor]:
    """Accepted drafts, and the drafts, of sequences that begin after (0, 0)."""
    text = torch.zeros(sequences, ORDER + loop.drafts + 1, dtype=torch.int64)
    start = torch.zeros(sequences, dtype=torch.int64)
    seeds = torch.arange(first_seed, first_seed + sequences)
    _, accepted, drafted = loop.step(text, start, seeds)
    return accepted.double(), drafted


def p_of_mean(differences: Tensor) -> float:
    """How likely a mean at least this far from 0 is."""
    spread = float(differences.std()) / math.sqrt(differences.numel())
    if float(differences.abs().max()) < 1e-5:  # rounding errors, where nothing is ever rejected
        return 1.0
    return float(2 * stats.norm.sf(abs(float(differences.mean())) / spread))


@pytest.mark.parametrize("drafts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("agreement", [0.0, 0.4, 0.7, 0.9, 1.0])
def test_accepted_lengths_are_those_of_the_sums_and_at_least_those_by_token(
    agreement: float, drafts: int
) -> None:
    """On each path prefix i is accepted with probability c_i, and by token with no more."""
    sequences = 10_000
    models = agreeing(agreement, SIZE)
    by_block, drafted = one_step(Loop(models, drafts, method=1), sequences, 0)
    by_token, same = one_step(Loop(models, drafts), sequences, 0)
    sums = BySums(models, drafts)
    by_sums, _ = one_step(sums, sequences, 0)
    assert torch.equal(drafted, same)
    text = torch.zeros(sequences, ORDER + drafts + 1, dtype=torch.int64)
    p, q = sums.distributions(text, torch.zeros(sequences, dtype=torch.int64), drafted)
    exact = prefix_factors(p, q, drafted)[:, 1:].sum(1)
    exact_by_token = token_factors(p, q, drafted)[:, 1:].sum(1)
    assert (exact >= exact_by_token - 1e-9).all()
    assert p_of_mean(by_block - exact) > FALSE_ALARM
    assert p_of_mean(by_sums - exact) > FALSE_ALARM
    assert p_of_mean(by_token - exact_by_token) > FALSE_ALARM
    gain = exact - exact_by_token
    assert p_of_mean(by_block - by_token - gain) > FALSE_ALARM
    if (
        float(gain.mean()) > 0.1
    ):  # The control: what is asked of blocks, token verification does not do.
        assert p_of_mean(by_token - exact) < CERTAIN
