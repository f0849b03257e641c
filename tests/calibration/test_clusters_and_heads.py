"""Clusters of pruned tokens and the head rows of their virtual tokens."""

import math
from functools import partial

import pytest
import torch

from rdk_cuda.affinity import Affinity
from rdk_cuda.calibration import cluster_pruned_tokens
from rdk_cuda.drafter import prune_head
from rdk_cuda.vocabulary import Vocabulary

V_T, D, K = 60, 8, 5


def _head(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(V_T, D, generator=generator, dtype=torch.float64)
    bias = torch.randn(V_T, generator=generator, dtype=torch.float64)
    return weight, bias


def _vocabulary():
    return Vocabulary(torch.randperm(V_T, generator=torch.Generator().manual_seed(1))[:20], V_T)


def _clusters(vocabulary):
    clusters = torch.full((V_T,), -1)
    clusters[vocabulary.pruned] = torch.arange(vocabulary.pruned.numel()) % K
    clusters[vocabulary.pruned[-1]] = -1  # a pruned token may be in no cluster
    return clusters


def _bound_and_mass(mean_probs, hidden, temperature):
    """Virtual logits with their bias, and the log-sum-exp of the members they stand for.

    `hidden` is `[D, n]`; both results are `[K, n]`.
    """
    weight, bias = _head()
    vocabulary = _vocabulary()
    clusters = _clusters(vocabulary)
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs, temperature=temperature)
    rows, constants = prune_head(weight, bias, vocabulary, virtual=affinity)
    virtual = (rows @ hidden + constants[:, None]) / temperature + affinity.bias[:, None]
    logits = (weight @ hidden + bias[:, None]) / temperature
    mass = torch.stack([logits[clusters == c].logsumexp(0) for c in range(K)])
    return virtual[vocabulary.draft_size :], mass


def test_the_head_is_the_kept_rows_then_the_weighted_means():
    (weight, bias), vocabulary = _head(), _vocabulary()
    clusters, mean_probs = _clusters(vocabulary), torch.rand(V_T).double()
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    small_weight, small_bias = prune_head(weight, bias, vocabulary, virtual=affinity)
    assert list(small_weight.shape) == [20 + K, D]
    assert list(small_bias.shape) == [20 + K]
    assert torch.equal(small_weight[:20], weight[vocabulary.draft_ids])
    assert torch.equal(small_bias[:20], bias[vocabulary.draft_ids])
    for c in range(K):
        members = clusters == c
        w = mean_probs[members] / mean_probs[members].sum()
        torch.testing.assert_close(small_weight[20 + c], w @ weight[members])
        torch.testing.assert_close(small_bias[20 + c], w @ bias[members])


def test_a_virtual_token_that_is_off_has_a_row_of_zeros():
    (weight, _), vocabulary = _head(), _vocabulary()
    offset = torch.tensor([0.0, -math.inf, 0, 0, 0])
    clusters, mean_probs = _clusters(vocabulary), torch.rand(V_T)
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs, offset=offset)
    rows, _ = prune_head(weight, None, vocabulary, virtual=affinity)
    assert rows[20:].any(1).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.3])
def test_a_virtual_token_never_claims_more_than_the_mass_of_its_members(temperature):
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        mean_probs = torch.rand(V_T, generator=generator).double() ** 4
        hidden = torch.randn(D, 200, generator=generator).double() * 2
        virtual, mass = _bound_and_mass(mean_probs, hidden, temperature)
        assert bool((virtual <= mass + 1e-6).all())  # the bias is float32


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.3])
def test_the_bound_is_tight_when_the_members_follow_the_prior(temperature):
    weight, bias = _head()
    hidden = torch.randn(D, 1, generator=torch.Generator().manual_seed(3)).double() * 0.5
    mean_probs = (weight @ hidden[:, 0] + bias).softmax(0)
    virtual, mass = _bound_and_mass(mean_probs, hidden, temperature)
    torch.testing.assert_close(virtual, mass, rtol=0, atol=1e-6)
    # Not of itself: with other weights, or weights of another temperature, mass is lost.
    for other in (torch.ones(V_T), mean_probs.square()):
        virtual, _ = _bound_and_mass(other, hidden, temperature)
        assert float((mass - virtual).max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_head_keeps_the_dtype_and_sums_in_float64(dtype):
    (weight, bias), vocabulary = _head(), _vocabulary()
    clusters, mean_probs = _clusters(vocabulary), torch.rand(V_T)
    weight, bias = weight.to(dtype), bias.to(dtype)
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    rows, constants = prune_head(weight, bias, vocabulary, virtual=affinity)
    exact, exact_constants = prune_head(
        weight.double(), bias.double(), vocabulary, virtual=affinity
    )
    assert torch.equal(rows, exact.to(dtype))
    assert torch.equal(constants, exact_constants.to(dtype))


def test_heads_and_clusters_refuse_what_does_not_fit():
    (weight, bias), vocabulary, ones = _head(), _vocabulary(), torch.ones(V_T)
    other, fewer = (
        Affinity.intersection(Vocabulary(torch.arange(count), size))
        for count, size in ((20, V_T + 1), (5, V_T))
    )
    prune, cluster = prune_head, partial(cluster_pruned_tokens, weight, vocabulary)
    eye = torch.eye(D + 1)
    for call, message in (
        (
            lambda: prune(weight[1:], None, vocabulary),
            r"weight has shape \[59, 8\].* floats \[60, d\]",
        ),
        (lambda: prune(weight, bias[:1], vocabulary), r"bias has shape \[1\]"),
        (lambda: prune(weight, bias, Vocabulary([0, -1], V_T)), "drafter token 1 has no target id"),
        (
            lambda: prune(weight, bias, vocabulary, virtual=other),
            r"virtual has 61 target and 20 .* needs 60, and at least 20",
        ),
        (lambda: prune(weight, bias, vocabulary, virtual=fewer), "60 target and 5 drafter tokens"),
        (lambda: cluster(ones, -1), "count is -1; needs 0 to .* 40"),
        (lambda: cluster(ones, 41), "count is 41; needs 0 to .* 40"),
        (lambda: cluster(ones * 0, 2), "mean_probs is 0 for all pruned tokens"),
        (lambda: cluster(ones * math.nan, 2), r"mean_probs\[0\] is nan"),
        (lambda: cluster(ones, 2, hidden_second_moment=eye), "hidden_second_moment has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert cluster(ones, 0).unique().tolist() == [-1]


class TestClusters:
    @pytest.fixture(autouse=True)
    def _needs_sklearn(self):
        pytest.importorskip("sklearn", reason="clustering needs the demo extra")

    def test_they_cover_all_pruned_tokens_and_no_kept_one(self):
        (weight, _), vocabulary = _head(), _vocabulary()
        clusters = cluster_pruned_tokens(weight, vocabulary, torch.rand(V_T), K)
        assert clusters.dtype == torch.int64
        assert list(clusters.shape) == [V_T]
        assert clusters[vocabulary.kept].unique().tolist() == [-1]
        assert clusters[vocabulary.pruned].unique().tolist() == list(range(K))
        Affinity.virtual_tokens(vocabulary, clusters, torch.rand(V_T))

    def test_tokens_without_mass_do_not_move_the_centres_but_join_the_nearest(self):
        # The outlier would take a cluster for itself, if it weighed anything.
        weight = torch.tensor([[0.0], [1.0], [1.1], [3.0], [3.1], [90.0]])
        vocabulary, mean_probs = Vocabulary([0], 6), torch.tensor([1.0, 1, 1, 1, 1, 0])
        clusters = cluster_pruned_tokens(weight, vocabulary, mean_probs, 2)
        assert clusters[1] == clusters[2] != clusters[3]
        assert clusters[3] == clusters[4] == clusters[5]

    def test_the_metric_is_right_for_correlated_hidden_states(self):
        (weight, _), vocabulary, mean_probs = _head(), _vocabulary(), torch.ones(V_T)
        generator = torch.Generator().manual_seed(5)
        mixing = torch.randn(D, D, generator=generator).double()
        moment = mixing @ mixing.T
        seen = cluster_pruned_tokens(weight, vocabulary, mean_probs, K, hidden_second_moment=moment)
        plain = cluster_pruned_tokens(weight, vocabulary, mean_probs, K)

        def loss(clusters):  # of logits: sum over members of (h_c - h) M (h_c - h)
            members = [weight[clusters == c] for c in range(K)]
            return sum(float(((rows - rows.mean(0)) @ mixing).square().sum()) for rows in members)

        assert loss(seen) < 0.8 * loss(plain)

    def test_centres_sought_among_the_heaviest_tokens_only_serve_as_well(self, monkeypatch):
        vocabulary, generator = _vocabulary(), torch.Generator().manual_seed(7)
        weight = torch.randn(V_T, D, generator=generator) + 9 * torch.arange(V_T)[:, None] % 45
        mean_probs = torch.rand(V_T, generator=generator)
        everywhere = cluster_pruned_tokens(weight, vocabulary, mean_probs, K)
        monkeypatch.setattr("rdk_cuda.recipes.stages.clusters._MOST_SEEDED", 20)
        sought = cluster_pruned_tokens(weight, vocabulary, mean_probs, K)
        assert len(set(zip(everywhere.tolist(), sought.tolist(), strict=True))) == K + 1

    @pytest.mark.filterwarnings("error")  # it is no fault, and means fewer clusters
    def test_fewer_distinct_rows_than_clusters_leave_no_empty_cluster(self):
        # k-means itself leaves gaps in its labels when rows repeat and most weigh nothing.
        weight = torch.tensor([9.0, 0, 1, 0, 1, 1, 2, 0, 2, 0, 0, 0, 2])[:, None]
        mean_probs = torch.tensor([9, 0, 0, 0, 0, 0, 0, 0, 0.4, 1, 0.1, 0, 0.5])
        for seed in range(5):
            clusters = cluster_pruned_tokens(weight, Vocabulary([0], 13), mean_probs, 8, seed=seed)
            assert clusters[1:].unique().tolist() == [0, 1, 2]
