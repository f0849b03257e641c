"""Each loss is its formula on the redistributed drafter, and so is its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity
from rdk_cuda.training import LOSSES, OverlapLoss, redistributed
from tests import generators

ROWS, V_T, COLUMNS, TEMPERATURE = 6, 37, 5, 0.8
TRAINED = ("draft_logits", "dynamic_logits")


def arguments(affinity: Affinity) -> dict[str, Tensor]:
    """Rows of both, with dynamic tokens, of which some are unused and some come twice."""
    tokens = generators.dynamic_tokens(ROWS, COLUMNS, V_T, seed=3)
    return {
        "target_logits": 2 * torch.randn(ROWS, V_T, generator=generators.generator(1)),
        "draft_logits": torch.randn(ROWS, affinity.draft_size, generator=generators.generator(2)),
        "dynamic_tokens": tokens,
        "dynamic_logits": torch.randn(tokens.shape, generator=generators.generator(4)),
    }


NEVER = -1e300  # the logarithm of 0, with a gradient that is a number


def dense_loss(loss: str, affinity: Affinity, given: dict[str, Tensor], at: float) -> Tensor:
    """By its formula, in float64, with the whole matrix; of logarithms, as probabilities vanish."""
    tokens = given["dynamic_tokens"].long()
    used = (tokens >= 0) & (tokens < V_T)
    static = given["draft_logits"] / at + affinity.bias.double()
    own = (given["dynamic_logits"] / at).masked_fill(~used, -math.inf)
    named = torch.nn.functional.one_hot(tokens.clamp(0, V_T - 1), V_T).double()
    matrix = torch.cat([affinity.dense().expand(len(tokens), -1, -1), named], 1)
    known = torch.cat([static, own], 1).log_softmax(1).clamp_min(NEVER)
    log_q = (known[:, :, None] + matrix.log().clamp_min(NEVER)).logsumexp(1)
    log_p = (given["target_logits"] / at).log_softmax(1)
    log_alpha = torch.minimum(log_p, log_q).logsumexp(1)
    reached = torch.where(log_q > NEVER / 2, log_p, NEVER).log_softmax(1)
    middle = torch.stack([log_p, log_q]).logsumexp(0) - math.log(2)
    forward, weight = entropy(reached, log_q), torch.exp(-3.0 * log_alpha.detach().exp())
    return {
        "tv": 1 - log_alpha.exp(),
        "log-alpha": -log_alpha,
        "lk": weight * forward + (1 - weight) * (1 - log_alpha.exp()),
        "forward-kl": forward,
        "reverse-kl": entropy(log_q, log_p),
        "jsd": (entropy(log_p, middle) + entropy(log_q, middle)) / 2,
    }[loss]


def entropy(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Of p relative to q."""
    return (log_p.exp() * torch.where(log_p > NEVER / 2, log_p - log_q, 0.0)).sum(1)


@pytest.mark.parametrize("kind", ["intersection", "virtual", "mixed-2"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("temperature", "scale"), [(0.8, 1), (0.1, 4), (0.1, 30), (0.001, 1)])
def test_a_loss_and_its_gradient_are_those_of_its_formula(
    loss: str, kind: str, temperature: float, scale: float
) -> None:
    """Also where float32 has no probability as small as those of most tokens."""
    affinity = generators.affinity(kind, V_T)
    given = arguments(affinity)
    for name in ("target_logits", *TRAINED):
        given[name] *= scale
    exact = {name: each if "tokens" in name else each.double() for name, each in given.items()}
    for name in TRAINED:
        exact[name].requires_grad_()
    expected = dense_loss(loss, affinity, exact, temperature)
    expected.sum().backward()
    for name in TRAINED:
        given[name].requires_grad_()
    losses = OverlapLoss(affinity, loss, temperature, reduction="none")(**given)
    torch.testing.assert_close(losses.double(), expected, rtol=2e-6, atol=2e-6)
    (len(losses) * OverlapLoss(affinity, loss, temperature)(**given)).backward()
    # Of float32, in which z / T may be thousands.
    near = 1e-5 if temperature > 0.1 else 1e-4
    exactly = 2e-7 * max(float(expected.detach().max()), 1.0) / temperature
    for name in TRAINED:
        got, wanted = given[name].grad, exact[name].grad
        assert got is not None
        assert wanted is not None
        torch.testing.assert_close(got.double(), wanted, rtol=near, atol=exactly)


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


@pytest.mark.parametrize("loss", LOSSES)
def test_impossible_tokens_of_either_row_teach_what_can_be_taught(loss: str) -> None:
    """The first target has nothing that is reached, the second a little, the third is ordinary."""
    affinity = Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
    never = -math.inf
    hidden = [[never, 3, never, 1, never], [never, 30, never, 30, 2]]
    target = torch.tensor([*hidden, [0, 1, 2, 3, 4.0]])
    draft = torch.tensor([[20, 0, -20], [-20, never, 9], [1, never, 2.0]], requires_grad=True)
    losses = OverlapLoss(affinity, loss, 0.1, reduction="none")(target, draft)
    losses.nansum().backward()
    undefined = loss in ("log-alpha", "lk", "forward-kl")
    assert losses.isnan().tolist() == [undefined, False, False]
    assert not bool(losses.isinf().any())
    assert draft.grad is not None
    assert bool(draft.grad.isfinite().all())
    taught = (draft.grad != 0).any(1).tolist()
    assert taught[2]
    assert taught[1] or loss not in ("lk", "forward-kl")  # log alpha is that of p(4) alone
    assert not taught[0] or loss not in ("log-alpha", "forward-kl")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_second_derivative_is_that_of_the_formula_or_refused(loss: str) -> None:
    affinity = generators.affinity("mixed-2", V_T)
    given = arguments(affinity)
    exact = {name: each if "tokens" in name else each.double() for name, each in given.items()}

    def second(rows: dict[str, Tensor], value: Callable[[], Tensor]) -> Tensor:
        logits = rows["draft_logits"].requires_grad_()
        (first,) = torch.autograd.grad(value().mean(), logits, create_graph=True)
        return torch.autograd.grad(value().mean() + first.square().sum(), logits)[0].double()

    expected = second(exact, lambda: dense_loss(loss, affinity, exact, TEMPERATURE))
    found = partial(second, given, lambda: OverlapLoss(affinity, loss, TEMPERATURE)(**given))
    if loss in ("tv", "log-alpha", "lk"):
        with pytest.raises(RuntimeError, match=r"rdk_cuda\.overlap: a second derivative"):
            found()
    else:
        torch.testing.assert_close(found(), expected, rtol=1e-5, atol=1e-7)


def test_what_is_no_loss_is_refused_by_name() -> None:
    affinity = generators.affinity("identity", V_T)
    with pytest.raises(ValueError, match="OverlapLoss: loss is 'kl'; needs one of tv, log-alpha"):
        OverlapLoss(affinity, "kl")
    with pytest.raises(ValueError, match="OverlapLoss: reduction is 'sum'; needs one of mean"):
        OverlapLoss(affinity, reduction="sum")
    with pytest.raises(ValueError, match=r"redistributed: temperature is 0\.0; needs to be above"):
        redistributed(torch.zeros(2, V_T), affinity, 0.0)
