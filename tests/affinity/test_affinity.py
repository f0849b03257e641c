"""The tensors of an affinity: exact, consistent, in call order, and not to be changed."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.vocabulary import Vocabulary

from .test_samplers import same

CANONICAL = ("bias", "row_offsets", "row_targets", "row_cdf", "spread_cdf", "prior_cdf")


def _random_affinity(seed, rank, draft_size=17, target_size=23):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(draft_size, target_size, generator=generator).pow(5)
    rows *= torch.rand(draft_size, target_size, generator=generator) < 0.2
    rows[seed % draft_size] = 0
    spread = torch.rand(draft_size, rank, generator=generator)
    spread *= torch.rand(draft_size, rank, generator=generator) < 0.7
    spread[seed % draft_size] = 0
    prior = torch.rand(rank, target_size, generator=generator).pow(3)
    return Affinity.from_rows(rows, spread=spread, prior=prior)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 4))
def test_columns_evaluate_the_distribution_that_rows_draw(seed, rank):
    affinity = _random_affinity(seed, rank)
    _, col_offsets, col_drafts, col_weights, spread, prior = affinity.by_target
    targets = torch.arange(affinity.target_size).repeat_interleave(col_offsets.diff())
    by_column = spread.double() @ prior.double()
    by_column[col_drafts.long(), targets] += col_weights.double()
    # float32 rounds each of S, U and P to within 2^-25 of itself.
    torch.testing.assert_close(by_column, affinity.dense(), rtol=2**-23, atol=0)
    for x in range(affinity.target_size):
        assert bool((col_drafts[col_offsets[x] : col_offsets[x + 1]].diff() > 0).all())
    assert col_offsets[0] == 0
    assert col_offsets[-1] == affinity.nnz


@pytest.mark.parametrize(("sums", "biased"), [((1.0, 1.0), False), ((2.0, 1.0), True)])
def test_operators_are_given_a_bias_only_where_it_is_not_zero(sums, biased):
    affinity = Affinity.from_rows([{0: total} for total in sums], target_size=2)
    for each in (affinity, affinity.to("meta")):
        given = each.bias if biased else None
        assert each.by_target[0] is given
        assert each.by_draft[0] is given


def test_an_affinity_cannot_be_changed():
    tensors = {name: getattr(_random_affinity(0, rank=1), name).clone() for name in CANONICAL}
    affinity = Affinity(**tensors)
    for tensor in tensors.values():  # it has its own copy
        tensor.zero_()
    assert torch.equal(affinity.dense(), _random_affinity(0, rank=1).dense())
    for name in (*CANONICAL, "row_top", "col_weights"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(affinity, name, torch.zeros(1))
    with pytest.raises(AttributeError):
        affinity.rank = 3
    with pytest.raises(TypeError, match="row_top"):
        Affinity(**tensors, row_top=torch.zeros(17, dtype=torch.int32))


def test_to_moves_every_tensor_and_leaves_the_original():
    affinity = _random_affinity(0, rank=2)
    assert affinity.to("cpu") is affinity
    moved = affinity.to("meta")
    assert moved.device.type == "meta"
    assert all(tensor.device.type == "meta" for tensor in (*moved.by_draft, *moved.by_target))
    assert (moved.draft_size, moved.target_size, moved.nnz) == (17, 23, affinity.nnz)
    assert affinity.device.type == "cpu"


def test_a_copy_is_the_same_affinity():
    affinity = _random_affinity(0, rank=2)
    assert same(copy.deepcopy(affinity), affinity)


def test_dense_refuses_what_would_not_fit():
    affinity = Affinity.intersection(Vocabulary.identity(2**13 + 1))
    with pytest.raises(AffinityError, match="8193 x 8193 entries are more than 2"):
        affinity.dense()
