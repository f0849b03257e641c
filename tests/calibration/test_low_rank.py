"""A head whose pruned rows have low rank, against the dense singular value decomposition."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary, gather_logits
from rdk_cuda.calibration import low_rank_head, sampled_acceptance, screened_tokens
from rdk_cuda.calibration.drafter import PrunedDrafter

from . import tiny_pair as tiny

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = tiny.full_head()
WEIGHT, BIAS = HEAD


def _moment(seed: int = 3) -> torch.Tensor:
    mixing = torch.randn(tiny.D, tiny.D, generator=torch.Generator().manual_seed(seed)).double()
    return mixing @ mixing.T


def _mean_probs() -> torch.Tensor:
    return torch.rand(tiny.V_T, generator=torch.Generator().manual_seed(4)).double() ** 3


def _loss(head, moment, mean_probs):
    """`sum_c prior_c E[(logit error)^2]`."""
    errors = head.dense().double() - WEIGHT.double()
    return float((mean_probs * ((errors @ moment) * errors).sum(1)).sum())


def test_kept_tokens_are_exact_at_any_rank():
    kept, hidden = tiny.vocabulary(), torch.randn(7, tiny.D)
    exact = torch.nn.functional.linear(hidden, WEIGHT, BIAS)
    head = low_rank_head(HEAD, kept, _moment(), 1)
    torch.testing.assert_close(head.logits(hidden)[:, kept.kept], exact[:, kept.kept])
    assert float((head.logits(hidden) - exact)[:, kept.pruned].abs().max()) > 0.1
    # And all of them at full rank.
    full = low_rank_head(HEAD, kept, _moment(), tiny.D, mean_probs=_mean_probs())
    torch.testing.assert_close(full.logits(hidden), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(full.dense(), WEIGHT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 3, tiny.D - 1])
def test_it_is_optimal_in_the_metric_of_the_hidden_states(rank, monkeypatch):
    monkeypatch.setattr("rdk_cuda.calibration.low_rank._BLOCK_ROWS", 5)  # blocks change nothing
    kept, moment, mean_probs = tiny.vocabulary(), _moment(), _mean_probs()
    head = low_rank_head(HEAD, kept, moment, rank, mean_probs=mean_probs)
    root = torch.linalg.cholesky(moment)
    weighted = mean_probs[kept.pruned].sqrt()[:, None] * WEIGHT[kept.pruned].double() @ root
    least = float(torch.linalg.svdvals(weighted)[rank:].square().sum())
    assert _loss(head, moment, mean_probs) == pytest.approx(least, rel=1e-4)
    for other in (
        low_rank_head(HEAD, kept, torch.eye(tiny.D), rank, mean_probs=mean_probs),
        low_rank_head(HEAD, kept, moment, rank),
    ):
        assert _loss(other, moment, mean_probs) > 1.001 * least


def test_directions_that_hidden_states_never_take_cost_nothing():
    # Rank 2 is exact for states in a plane.
    plane = torch.randn(tiny.D, 2, generator=torch.Generator().manual_seed(6))
    head = low_rank_head(HEAD, tiny.vocabulary(), plane @ plane.T, 2)
    hidden = torch.randn(20, 2) @ plane.T
    exact = torch.nn.functional.linear(hidden, WEIGHT, BIAS)
    torch.testing.assert_close(head.logits(hidden), exact, rtol=1e-3, atol=1e-3)


def test_a_permuted_vocabulary_gets_the_permuted_logits():
    kept, hidden = tiny.vocabulary(), torch.randn(5, tiny.D)
    to = torch.randperm(tiny.V_T, generator=torch.Generator().manual_seed(5))
    back = to.argsort()
    ours = low_rank_head(HEAD, kept, _moment(), 3, mean_probs=_mean_probs()).logits(hidden)
    renamed = Vocabulary(to[kept.draft_ids], tiny.V_T)
    theirs = low_rank_head(
        (WEIGHT[back], BIAS[back]), renamed, _moment(), 3, mean_probs=_mean_probs()[back]
    ).logits(hidden)
    torch.testing.assert_close(theirs[:, to], ours, rtol=1e-4, atol=1e-4)


def test_it_costs_two_operations_for_each_weight():
    head = low_rank_head(HEAD, tiny.vocabulary(), _moment(), 2)
    weights = tiny.V_HOT * tiny.D + 2 * tiny.D + (tiny.V_T - tiny.V_HOT) * 2
    assert (head.rank, head.rows) == (2, tiny.V_HOT + 2)
    assert (head.bytes, head.flops) == (4 * weights, 2 * weights)
    half = low_rank_head((WEIGHT.bfloat16(), None), tiny.vocabulary(), _moment(), 2)
    assert half.left.dtype == half.right.dtype == torch.bfloat16
    assert half.bytes == 2 * weights


def test_as_a_dense_weight_it_is_measured_like_any_head():
    samples = tiny.samples(300)
    moment = samples.hidden.double().T @ samples.hidden.double()
    everything = Vocabulary.identity(tiny.V_T)
    rates = []
    for rank in (1, 3, tiny.D):
        head = low_rank_head(
            HEAD, tiny.vocabulary(), moment, rank, mean_probs=tiny.mean_probs(samples)
        )
        drafter = PrunedDrafter(
            everything, Affinity.intersection(everything), head.dense(), head.bias
        )
        q = head.logits(samples.hidden).softmax(1).gather(1, samples.targets.long())
        rates.append(torch.minimum(samples.target_probs(1.0), q).sum(1))
        ours = sampled_acceptance(samples, drafter, (head.dense(), head.bias), 1.0)
        torch.testing.assert_close(ours, rates[-1], rtol=1e-4, atol=1e-4)
    assert rates[0].mean() < rates[1].mean() < rates[2].mean()


def test_screened_tokens_are_the_likeliest_pruned_ones():
    kept, hidden = tiny.vocabulary(), torch.randn(9, tiny.D)
    exact = torch.nn.functional.linear(hidden, WEIGHT, BIAS)
    exact[:, kept.kept] = -torch.inf
    head = low_rank_head(HEAD, kept, _moment(), tiny.D)
    tokens = screened_tokens(head, hidden, 4)
    assert tokens.dtype == torch.int32
    best, ids = exact.topk(4)
    assert torch.equal(tokens.long(), ids)
    torch.testing.assert_close(gather_logits(hidden, WEIGHT, tokens, BIAS), best)
    # At low rank some are missed, more than half the likeliest are found.
    found = screened_tokens(low_rank_head(HEAD, kept, _moment(), 4), hidden, 4)
    assert 0.5 < float((found[:, :, None] == ids[:, None]).any(2).float().mean()) < 1


def test_what_has_no_low_rank_form_is_refused():
    kept, moment = tiny.vocabulary(), _moment()
    for rank in (0, tiny.D + 1):
        with pytest.raises(ValueError, match=f"rank is {rank} .* 1 to d = 6"):
            low_rank_head(HEAD, kept, moment, rank)
    with pytest.raises(ValueError, match="0 tokens are pruned"):
        low_rank_head(HEAD, Vocabulary.identity(tiny.V_T), moment, 1)
    with pytest.raises(ValueError, match="second_moment has shape"):
        low_rank_head(HEAD, kept, torch.eye(tiny.D + 1), 1)
    with pytest.raises(ValueError, match="second_moment is 0"):
        low_rank_head(HEAD, kept, moment * 0, 1)
    with pytest.raises(ValueError, match="mean_probs is 0 for all pruned tokens"):
        low_rank_head(HEAD, kept, moment, 1, mean_probs=torch.zeros(tiny.V_T))
    head = low_rank_head(HEAD, kept, moment, 1)
    with pytest.raises(ValueError, match=r"count is 29; needs 1 to .* 28"):
        screened_tokens(head, torch.zeros(1, tiny.D), 29)
