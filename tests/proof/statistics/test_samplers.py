"""Tokens drafted through an affinity have the frequencies of the dense matrix that it stands for.

20,000 drafts each at one position, fixed seeds; a right implementation fails with probability 1e-6.
The negative controls are the same sampler with another `keep`, tau or mean probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rdk_cuda.affinity import Affinity
from rdk_cuda.reference import dense
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.proof.statistics.chi_square import assert_caught, assert_fits, histogram
from tests.proof.statistics.position import Position
from tests.proof.statistics.test_one_position import SIZE

IDS = torch.tensor([3, 17, -1, 0, 29, 8, 11, -1, 5, 22])
MEAN = generators.zipf(SIZE)
OMEGA = torch.randn(SIZE, SIZE, generator=generators.generator(5), dtype=torch.float64)


def covariance(omega: Tensor, tau: float, keep: float) -> Tensor:
    return dense.with_kept_mass(dense.drafter_rows(dense.exact_rdk(omega, tau), IDS), IDS, keep)


def first_order(keep: float) -> Tensor:
    rows = dense.drafter_rows(dense.first_order_rdk(MEAN, 0.01), IDS)
    return dense.with_kept_mass(rows, IDS, keep)


VOCABULARY = Vocabulary(IDS, SIZE)
SAMPLERS = {
    "covariance": (
        lambda: Affinity.covariance(VOCABULARY, OMEGA, 0.5),
        covariance(OMEGA, 0.5, 0.0),
        covariance(OMEGA, 0.7, 0.0),
    ),
    "covariance, positive part, some kept": (
        lambda: Affinity.covariance(VOCABULARY, OMEGA.to_sparse(), 0.5, keep=0.3),
        covariance(OMEGA.clamp(min=0), 0.5, 0.3),
        covariance(OMEGA.clamp(min=0), 0.5, 0.2),
    ),
    "first-order, some kept": (
        lambda: Affinity.first_order(VOCABULARY, MEAN, 0.01, keep=0.3),
        first_order(0.3),
        first_order(0.2),
    ),
    "cold mass": (
        lambda: Affinity.cold_mass(VOCABULARY, MEAN),
        dense.cold_mass(IDS, MEAN),
        dense.cold_mass(IDS, MEAN**1.5),
    ),
}


@pytest.mark.parametrize(("build", "matrix", "wrong"), SAMPLERS.values(), ids=SAMPLERS)
def test_drafts_follow_the_dense_rows_and_the_output_the_target(
    build: Callable[[], Affinity], matrix: Tensor, wrong: Tensor
) -> None:
    position = Position.random(build())
    drafted = position.draft()
    counts = histogram(drafted, SIZE)
    probs = torch.softmax(position.drafter[0].double() + position.affinity.bias.double(), 0)
    assert_fits(counts, dense.exact_redistribute(probs, matrix))
    assert_caught(counts, dense.exact_redistribute(probs, wrong))
    output = histogram(position.verify(drafted, position.stats())[0][:, 0], SIZE)
    assert_fits(output, position.p[0])
    assert_caught(output, position.q()[0])
