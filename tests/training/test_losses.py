"""Each loss is its formula on the redistributed drafter, and so is its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity
from rdk_cuda.training import LOSSES, OverlapLoss, redistributed
from tests import generators

ROWS, V_T, COLUMNS, TEMPERATURE = 6, 37, 5, 0.8


def arguments(affinity: Affinity) -> dict[str, Tensor]:
    """Rows of both, with dynamic tokens, of which some are unused and some come twice."""
    tokens = generators.dynamic_tokens(ROWS, COLUMNS, V_T, seed=3)
    return {
        "target_logits": 2 * torch.randn(ROWS, V_T, generator=generators.generator(1)),
        "draft_logits": torch.randn(ROWS, affinity.draft_size, generator=generators.generator(2)),
        "dynamic_tokens": tokens,
        "dynamic_logits": torch.randn(tokens.shape, generator=generators.generator(4)),
    }


def dense_loss(loss: str, affinity: Affinity, given: dict[str, Tensor]) -> Tensor:
    """By its formula, in float64, with the whole matrix."""
    tokens = given["dynamic_tokens"].long()
    used = (tokens >= 0) & (tokens < V_T)
    static = given["draft_logits"] / TEMPERATURE + affinity.bias.double()
    own = (given["dynamic_logits"] / TEMPERATURE).masked_fill(~used, -math.inf)
    probs = torch.cat([static, own], 1).softmax(1)
    q = probs[:, : affinity.draft_size] @ affinity.dense()
    named = torch.nn.functional.one_hot(tokens.clamp(0, V_T - 1), V_T).double()
    q = q + (probs[:, affinity.draft_size :, None] * named).sum(1)
    p = (given["target_logits"] / TEMPERATURE).softmax(1)
    alpha = torch.minimum(p, q).sum(1)
    reached = torch.where(q > 0, p, 0.0)
    reached = reached / reached.sum(1, keepdim=True)
    forward = entropy(reached, q)
    middle = (p + q) / 2
    weight = torch.exp(-3.0 * alpha.detach())
    return {
        "tv": 1 - alpha,
        "log-alpha": -alpha.log(),
        "lk": weight * forward + (1 - weight) * (1 - alpha),
        "forward-kl": forward,
        "reverse-kl": entropy(q, p),
        "jsd": (entropy(p, middle) + entropy(q, middle)) / 2,
    }[loss]


def entropy(p: Tensor, q: Tensor) -> Tensor:
    """Of p relative to q."""
    return torch.where(p > 0, p * (p.clamp_min(1e-300) / q.clamp_min(1e-300)).log(), 0.0).sum(1)


@pytest.mark.parametrize("kind", ["intersection", "virtual", "mixed-2"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_its_formula(loss: str, kind: str) -> None:
    affinity = generators.affinity(kind, V_T)
    given = arguments(affinity)
    exact = {
        name: value.double().requires_grad_(name in ("draft_logits", "dynamic_logits"))
        if value.is_floating_point()
        else value
        for name, value in given.items()
    }
    expected = dense_loss(loss, affinity, exact)
    expected.mean().backward()
    for name in ("draft_logits", "dynamic_logits"):
        given[name].requires_grad_()
    losses = OverlapLoss(affinity, loss, TEMPERATURE, reduction="none")(**given)
    torch.testing.assert_close(losses.double(), expected, rtol=2e-6, atol=2e-6)
    OverlapLoss(affinity, loss, TEMPERATURE)(**given).backward()
    for name in ("draft_logits", "dynamic_logits"):
        got, wanted = given[name].grad, exact[name].grad
        assert got is not None
        assert wanted is not None
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("kind", ["intersection", "virtual", "mixed-2"])
def test_the_redistributed_drafter_is_that_of_the_operator(kind: str) -> None:
    affinity = generators.affinity(kind, V_T)
    given = arguments(affinity)
    del given["target_logits"]
    q = redistributed(given.pop("draft_logits"), affinity, TEMPERATURE, **given)
    again = arguments(affinity)
    del again["target_logits"]
    operator = rdk_cuda.redistribute(affinity=affinity, temperature=TEMPERATURE, **again)
    torch.testing.assert_close(q, operator, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("whose", ["target_logits", "draft_logits"])
def test_a_row_without_a_distribution_teaches_nothing(loss: str, whose: str) -> None:
    affinity = generators.affinity("virtual", V_T)
    given = arguments(affinity)
    given[whose][2] = math.nan
    given["draft_logits"].requires_grad_()
    losses = OverlapLoss(affinity, loss, reduction="none")(**given)
    assert losses.isnan().tolist() == [row == 2 for row in range(ROWS)]
    OverlapLoss(affinity, loss)(**given).backward()
    gradient = given["draft_logits"].grad
    assert gradient is not None
    assert bool(gradient.isfinite().all())
    assert bool((gradient[2] == 0).all())
    assert bool((gradient[[0, 1, 3, 4, 5]] != 0).any(1).all())


def test_what_is_no_loss_is_refused_by_name() -> None:
    affinity = generators.affinity("identity", V_T)
    with pytest.raises(ValueError, match="OverlapLoss: loss is 'kl'; needs one of tv, log-alpha"):
        OverlapLoss(affinity, "kl")
    with pytest.raises(ValueError, match="OverlapLoss: reduction is 'sum'; needs one of mean"):
        OverlapLoss(affinity, reduction="sum")
    with pytest.raises(ValueError, match=r"redistributed: temperature is 0\.0; needs to be above"):
        redistributed(torch.zeros(2, V_T), affinity, 0.0)
