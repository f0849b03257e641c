"""Affinities over a vocabulary as large and as uneven as that of Llama 3."""

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


def test_first_order_reaches_every_token(statistics):
    vocabulary, mean_probs = statistics
    affinity = Affinity.first_order(vocabulary, mean_probs, 1e-8)
    _assert_exact(affinity)
    assert bool(_reachable(affinity).all())
    likely = affinity.spread[:, 1] > 0.5
    assert bool(likely.any())
    assert set(affinity.row_top[likely].tolist()) == {int(mean_probs.argmax())}


def test_virtual_tokens_reach_every_token_of_positive_mean_probability(statistics):
    vocabulary, mean_probs = statistics
    count = 1024
    clusters = torch.full((vocabulary.target_size,), -1)
    clusters[vocabulary.pruned] = torch.arange(vocabulary.pruned.numel()) % count
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    _assert_exact(affinity)
    positive = mean_probs > 0
    positive[vocabulary.kept] = True
    assert bool(_reachable(affinity)[positive].all())
    assert torch.equal(affinity.row_top[: vocabulary.draft_size].long(), vocabulary.draft_ids)
    assert affinity.draft_size == vocabulary.draft_size + count
