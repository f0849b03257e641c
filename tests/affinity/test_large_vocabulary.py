"""Affinities over a vocabulary as large and as uneven as that of Llama 3."""

import numpy as np
import pytest
import torch

from rdk_cuda.affinity import Affinity
from rdk_cuda.affinity.fixed_point import ONE
from tests import large_vocabulary


@pytest.fixture(scope="module")
def statistics():
    return large_vocabulary.statistics()


def _reachable(affinity):
    """Target tokens that some drawn integer leads to."""
    entries = affinity.col_offsets.diff() > 0
    starts = torch.zeros_like(affinity.prior_cdf[:, :1])
    priors = (affinity.prior_cdf.diff(dim=1, prepend=starts) > 0).any(0)
    return entries | priors if affinity.rank else entries


def _assert_exact(affinity):
    ends = torch.zeros(affinity.draft_size, dtype=torch.int64)
    filled = affinity.row_offsets.diff() > 0
    ends[filled] = affinity.row_cdf[affinity.row_offsets[1:].long()[filled] - 1]
    if affinity.rank:
        ends = affinity.spread_cdf[:, -1]
    assert bool((ends == ONE).all())
    assert bool((affinity.prior_cdf[:, -1:] == ONE).all())


def test_intersection_reaches_the_kept_tokens_and_no_other(statistics):
    vocabulary, _ = statistics
    affinity = Affinity.intersection(vocabulary)
    _assert_exact(affinity)
    assert torch.equal(_reachable(affinity).nonzero().flatten(), vocabulary.kept)
    assert torch.equal(affinity.row_top.long(), vocabulary.draft_ids)


@pytest.mark.parametrize("tau", [1e-10, 1e-8])
def test_first_order_reaches_every_token(statistics, tau):
    vocabulary, mean_probs = statistics
    affinity = Affinity.first_order(vocabulary, mean_probs, tau)
    _assert_exact(affinity)
    assert bool(_reachable(affinity).all())
    likely = affinity.spread[:, 1] > 0.5
    assert bool(likely.any())
    assert set(affinity.row_top[likely].tolist()) == {int(mean_probs.argmax())}


@pytest.mark.parametrize("count", [1, 1024])
def test_virtual_tokens_reach_every_token_of_positive_mean_probability(statistics, count):
    vocabulary, mean_probs = statistics
    clusters = torch.full((vocabulary.target_size,), -1)
    clusters[vocabulary.pruned] = torch.arange(vocabulary.pruned.numel()) % count
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    _assert_exact(affinity)
    positive = mean_probs > 0
    positive[vocabulary.kept] = True
    assert bool(_reachable(affinity)[positive].all())
    assert affinity.draft_size == vocabulary.draft_size + count


def test_cold_mass_reaches_every_token_of_positive_probability(statistics):
    vocabulary, mean_probs = statistics
    affinity = Affinity.cold_mass(vocabulary, mean_probs)
    _assert_exact(affinity)
    assert torch.equal(_reachable(affinity), (mean_probs > 0) | affinity.col_offsets.diff().bool())
    pruned = mean_probs.index_fill(0, vocabulary.kept, 0.0)
    assert int(affinity.row_top[-1]) == int(pruned.argmax())
    assert torch.equal(affinity.row_top[:-1].long(), vocabulary.draft_ids)


@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_a_token_that_keeps_half_is_the_likeliest_of_its_row(statistics, keep):
    vocabulary, mean_probs = statistics
    affinity = Affinity.first_order(vocabulary, mean_probs, 1e-8, keep=keep)
    _assert_exact(affinity)
    assert bool((affinity.spread.sum(1) > 0).all()) == (keep < 1)
    assert torch.equal(affinity.row_top.long(), vocabulary.draft_ids)


def test_float32_running_sums_would_not_reach_them(statistics):
    # Why masses are integers: the control of the tests above.
    _, mean_probs = statistics
    sums = (mean_probs / mean_probs.sum()).numpy().cumsum(dtype=np.float32)
    assert int((np.diff(sums, prepend=np.float32(0)) <= 0).sum()) > 10_000


def test_a_real_affinity_survives_its_file(statistics, tmp_path):
    vocabulary, mean_probs = statistics
    affinity = Affinity.first_order(vocabulary, mean_probs, 1e-6)
    affinity.save(tmp_path / "affinity.safetensors")
    loaded = Affinity.load(tmp_path / "affinity.safetensors")
    for ours, theirs in zip(
        loaded.by_draft + loaded.by_target, affinity.by_draft + affinity.by_target, strict=True
    ):
        assert torch.equal(ours, theirs)
