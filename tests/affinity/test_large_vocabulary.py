"""Affinities over a vocabulary as large and as uneven as that of Llama 3."""

import pytest
import torch

from rdk_cuda.affinity import Affinity
from tests import large_vocabulary

from .test_samplers import assert_rows_sum_exactly


@pytest.fixture(scope="module")
def statistics():
    return large_vocabulary.statistics()


def _reachable(affinity):
    """Target tokens that some drawn integer leads to."""
    entries = affinity.col_offsets.diff() > 0
    starts = torch.zeros_like(affinity.prior_cdf[:, :1])
    priors = (affinity.prior_cdf.diff(dim=1, prepend=starts) > 0).any(0)
    return entries | priors if affinity.rank else entries


def test_first_order_reaches_every_token(statistics):
    vocabulary, mean_probs = statistics
    affinity = Affinity.first_order(vocabulary, mean_probs, 1e-8)
    assert_rows_sum_exactly(affinity)
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
    assert_rows_sum_exactly(affinity)
    positive = mean_probs > 0
    positive[vocabulary.kept] = True
    assert bool(_reachable(affinity)[positive].all())
    assert torch.equal(affinity.row_top[: vocabulary.draft_size].long(), vocabulary.draft_ids)
    assert affinity.draft_size == vocabulary.draft_size + count
