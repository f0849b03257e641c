"""The factors of a head's pruned rows, against the dense singular value decomposition."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import low_rank_factors

from . import tiny_pair as tiny

HEAD = tiny.full_head()
WEIGHT, BIAS = HEAD


def _moment(seed: int = 3) -> torch.Tensor:
    mixing = torch.randn(tiny.D, tiny.D, generator=torch.Generator().manual_seed(seed)).double()
    return mixing @ mixing.T


def _mean_probs() -> torch.Tensor:
    return torch.rand(tiny.V_T, generator=torch.Generator().manual_seed(4)).double() ** 3


def _loss(head, moment, mean_probs):
    """`sum_c mu_c E[(logit error)^2]`."""
    errors = head[0].double() - WEIGHT.double()
    return float((mean_probs * ((errors @ moment) * errors).sum(1)).sum())


def _head(head, kept, *args, **options):
    """The head with the product of the factors in place of its pruned rows."""
    left, right = low_rank_factors(head, kept, *args, **options)
    weight = head[0].clone()
    weight[kept.pruned] = left @ right
    return weight, head[1]


def test_factors_have_the_asked_rank_and_are_exact_at_full_rank():
    kept = tiny.vocabulary()
    left, right = low_rank_factors(HEAD, kept, _moment(), 2)
    assert int(torch.linalg.matrix_rank(left @ right, rtol=1e-5)) == 2
    full, _ = _head(HEAD, kept, _moment(), tiny.D, mean_probs=_mean_probs())
    torch.testing.assert_close(full, WEIGHT, rtol=1e-4, atol=1e-4)
    halves = low_rank_factors((WEIGHT.bfloat16(), None), kept, _moment(), 2)
    assert {part.dtype for part in halves} == {torch.float32}


@pytest.mark.parametrize("rank", [1, 3, tiny.D - 1])
def test_it_is_optimal_in_the_metric_of_the_hidden_states(rank, monkeypatch):
    monkeypatch.setattr("rdk_cuda.recipes.stages.screen._BLOCK_ROWS", 5)  # blocks change nothing
    kept, moment, mean_probs = tiny.vocabulary(), _moment(), _mean_probs()
    head = _head(HEAD, kept, moment, rank, mean_probs=mean_probs)
    root = torch.linalg.cholesky(moment)
    weighted = mean_probs[kept.pruned].sqrt()[:, None] * WEIGHT[kept.pruned].double() @ root
    least = float(torch.linalg.svdvals(weighted)[rank:].square().sum())
    assert _loss(head, moment, mean_probs) == pytest.approx(least, rel=1e-4)
    for other in (
        _head(HEAD, kept, torch.eye(tiny.D), rank, mean_probs=mean_probs),
        _head(HEAD, kept, moment, rank),
    ):
        assert _loss(other, moment, mean_probs) > 1.001 * least


def test_what_has_no_low_rank_form_is_refused():
    kept, moment = tiny.vocabulary(), _moment()
    for rank in (0, tiny.D + 1):
        with pytest.raises(ValueError, match=f"rank is {rank} .* 1 to d = 6"):
            low_rank_factors(HEAD, kept, moment, rank)
    with pytest.raises(ValueError, match="0 tokens are pruned"):
        low_rank_factors(HEAD, Vocabulary.identity(tiny.V_T), moment, 1)
    with pytest.raises(ValueError, match="second_moment has shape"):
        low_rank_factors(HEAD, kept, torch.eye(tiny.D + 1), 1)
    with pytest.raises(ValueError, match="second_moment is 0"):
        low_rank_factors(HEAD, kept, moment * 0, 1)
    with pytest.raises(ValueError, match="mean_probs is 0 for all pruned tokens"):
        low_rank_factors(HEAD, kept, moment, 1, mean_probs=torch.zeros(tiny.V_T))
