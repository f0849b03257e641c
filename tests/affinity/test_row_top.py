"""The likeliest target of a row, against brute force in Python's integers."""

from fractions import Fraction
from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdk_cuda.affinity import Affinity
from rdk_cuda.affinity.fixed_point import ONE


def _running_differences(sums):
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def _exact_rows(affinity):
    """`A` in units of 2^-64, from the public tensors alone, as lists of Python integers."""
    priors = [_running_differences(sums) for sums in affinity.prior_cdf.tolist()]
    offsets = affinity.row_offsets.tolist()
    for i in range(affinity.draft_size):
        entries = slice(offsets[i], offsets[i + 1])
        sums = affinity.row_cdf[entries].tolist() + affinity.spread_cdf[i].tolist()
        units = _running_differences(sums)
        row = [0] * affinity.target_size
        for target, unit in zip(affinity.row_targets[entries].tolist(), units, strict=False):
            row[target] += unit * ONE
        for unit, prior in zip(units[offsets[i + 1] - offsets[i] :], priors, strict=True):
            row = [mass + unit * share for mass, share in zip(row, prior, strict=True)]
        yield row


def _brute_force(affinity):
    return [row.index(max(row)) if any(row) else -1 for row in _exact_rows(affinity)]


@st.composite
def affinities(draw, rank):
    """Weights of few distinct values, so that ties are common."""
    draft_size, target_size = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    weight = st.sampled_from([0.0, 0.0, 1.0, 2.0, 4.0])

    def matrix(height, width):
        flat = draw(st.lists(weight, min_size=height * width, max_size=height * width))
        return torch.tensor(flat).view(height, width)

    prior = matrix(rank, target_size)
    prior[prior.sum(1) == 0] = 1.0
    return Affinity.from_rows(
        matrix(draft_size, target_size), spread=matrix(draft_size, rank), prior=prior
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4).flatmap(affinities))
def test_it_is_the_largest_entry_and_the_lowest_id_on_ties(affinity):
    assert affinity.row_top.tolist() == _brute_force(affinity)
    assert all(sum(row) in (0, ONE * ONE) for row in _exact_rows(affinity))


def test_a_token_beaten_in_an_unused_prior_still_wins_its_tie():
    # Row 0 uses the first prior only, where all tokens are equal. Row 2 has all its mass on one.
    affinity = Affinity.from_rows(
        [{}, {}, {}],
        spread=torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
        prior=torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]),
    )
    assert affinity.row_top.tolist() == [0, 3, 3]
    assert list(_exact_rows(affinity))[2] == [0, 0, 0, 2**64]


def test_differences_that_float64_cannot_see_decide():
    """Two masses of about 2^62 units of 2^-64, where float64 rounds to multiples of 512 or more."""
    random = Random(0)
    misjudged = 0
    for _ in range(100):
        spread = random.randrange(ONE // 3, ONE // 2)
        # first / second is so close to the ratio of the spreads that token 0 gains by the one
        # almost exactly what token 1 gains by the other.
        ratio = Fraction(ONE - spread, spread).limit_denominator(1 << 24)
        first, second = ratio.numerator, ratio.denominator
        a, b = (ONE // 3 + random.randrange(1 << 26, 1 << 27) for _ in range(2))
        prior = [[a + first, a, ONE - 2 * a - first], [b, b + second, ONE - 2 * b - second]]
        affinity = Affinity(
            bias=torch.zeros(1),
            row_offsets=torch.tensor([0, 0], dtype=torch.int32),
            row_targets=torch.zeros(0, dtype=torch.int32),
            row_cdf=torch.zeros(0, dtype=torch.int64),
            spread_cdf=torch.tensor([[spread, ONE]]),
            prior_cdf=torch.tensor(prior).cumsum(1),
        )
        assert affinity.row_top.tolist() == _brute_force(affinity)
        misjudged += int(affinity.dense()[0].argmax()) != affinity.row_top.item()
    assert misjudged > 5  # what floating point would have said
