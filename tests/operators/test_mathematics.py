"""The reference itself against dense algebra: section 2 of docs/design.md, by definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators


@st.composite
def distributions(draw: st.DrawFn, count: int) -> Tensor:
    """``[count, V]``, zeros likely."""
    size = draw(st.integers(1, 6))
    weight = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
    rows = [draw(st.lists(weight, min_size=size, max_size=size)) for _ in range(count)]
    weights = torch.tensor(rows, dtype=torch.float64)
    weights[weights.sum(1) == 0, 0] = 1
    return weights / weights.sum(1, keepdim=True)


@given(distributions(2))
def test_speculative_sampling_is_lossless(probs: Tensor) -> None:
    p, q = probs
    torch.testing.assert_close(reference.output_distribution(p, q), p, rtol=0, atol=1e-12)


@given(distributions(2))
def test_the_rejected_mass_is_that_of_the_residual(probs: Tensor) -> None:
    p, q = probs
    rejected = 1 - reference.acceptance_rate(p, q)
    torch.testing.assert_close(rejected, (p - q).clamp(min=0).sum(), rtol=0, atol=1e-12)
    torch.testing.assert_close(reference.residual(p, q).sum(), torch.tensor(1.0).double())


@given(distributions(1))
def test_the_output_is_wrong_where_another_q_is_verified(probs: Tensor) -> None:
    """The negative control: a drafter that always proposes the least likely token, as if by q."""
    p = probs[0]
    always = torch.nn.functional.one_hot(p.argmin(), p.numel()).double()
    output = reference.output_distribution(p, p, drafted=always)
    assert torch.allclose(output, p) == (p.numel() == 1)


def dense_q(
    affinity: Affinity, logits: Tensor, dynamic_tokens: Tensor, dynamic_logits: Tensor
) -> Tensor:
    """q of one row straight from its definition."""
    used = (dynamic_tokens >= 0) & (dynamic_tokens < affinity.target_size)
    static = logits.double() / 0.8 + affinity.bias.double()
    dynamic = (dynamic_logits.double() / 0.8).masked_fill(~used, -math.inf)
    probs = torch.softmax(torch.cat([static, dynamic]), 0)
    q = reference.exact_redistribute(probs[: affinity.draft_size], affinity.dense())
    for token, prob in zip(dynamic_tokens[used], probs[affinity.draft_size :][used], strict=True):
        q[token] += prob
    return q


@pytest.mark.parametrize("kind", generators.AFFINITIES)
@pytest.mark.parametrize("size", [1, 2, 111, 2500])
def test_redistribution_is_the_dense_product(kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    logits = generators.logits(3, affinity.draft_size)
    tokens = generators.dynamic_tokens(3, 6, size)
    values = generators.logits(3, 6, seed=1)
    actual = reference.redistribute(
        logits,
        torch.full((3,), 0.8),
        *affinity.by_target,
        affinity.row_top,
        tokens,
        values,
        dtype=torch.float64,
    )
    expected = [dense_q(affinity, *row) for row in zip(logits, tokens, values, strict=True)]
    # float32 temperatures and weights: 0.8 is not 0.8, and the weights are rounded integers.
    torch.testing.assert_close(actual, torch.stack(expected), rtol=2e-6, atol=1e-12)


def test_temperature_zero_drafts_the_top_of_the_likeliest_row() -> None:
    affinity = generators.affinity("mixed-2", 50)
    logits = generators.logits(20, affinity.draft_size)
    zero, integers = torch.zeros(20), torch.arange(20)
    tokens, stats = reference.draft(logits, zero, integers, integers, *affinity.by_draft)
    q = reference.redistribute(logits, zero, *affinity.by_target, affinity.row_top)
    usable = logits.masked_fill(affinity.bias == -math.inf, -math.inf)
    expected = affinity.dense()[usable.argmax(1)].argmax(1)
    assert torch.equal(tokens, expected)
    assert torch.equal(q, torch.nn.functional.one_hot(expected, 50).float())
    assert not stats.any()
