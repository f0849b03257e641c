"""What the operators are compared with is right: a fast wrong sampler is no comparison."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from profiling.bench import eager
from rdk_cuda import Affinity, reference
from rdk_cuda import _ops as operators
from tests import generators
from tests.statistics.chi_square import assert_caught, assert_fits, histogram

KINDS = ("identity", "intersection", "first-order", "virtual", "mixed-2")
SAMPLES = 40_000


def logits_for(affinity: Affinity, rows: int, dtype: torch.dtype) -> Tensor:
    return generators.logits(rows, affinity.draft_size, seed=3, dtype=dtype)


@pytest.mark.parametrize("sparse", [False, True], ids=["scatter", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_redistribute_is_that_of_the_operator(kind: str, dtype: torch.dtype, sparse: bool) -> None:
    affinity = generators.affinity(kind, 700)
    entries = eager.Entries.of(affinity)
    logits, temperature = logits_for(affinity, 3, dtype), torch.tensor([0.5, 1.0, 1.5])
    tokens = torch.randint(0, 700, (3, 5), dtype=torch.int32)
    tokens[:, 1] = tokens[:, 0]
    dynamic = (tokens, generators.logits(3, 5, seed=4, dtype=dtype))
    for given in ((), dynamic):
        ours = operators.redistribute(
            logits, temperature, *affinity.by_target, affinity.row_top, *given
        )
        matrix = entries.matrix() if sparse else None
        q = eager.redistribute(logits, temperature, entries, given or None, matrix)
        torch.testing.assert_close(q, ours, rtol=1e-5, atol=1e-7)


def test_gather_logits_is_that_of_the_operator() -> None:
    hidden, weight = torch.randn(2, 64), torch.randn(50, 64)
    tokens = torch.randint(0, 50, (2, 7), dtype=torch.int32)
    torch.testing.assert_close(
        eager.gather_logits(hidden, weight, tokens),
        operators.gather_logits(hidden, weight, tokens),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_draft_is_accepted_exactly_where_its_coin_says() -> None:
    generator = torch.Generator().manual_seed(5)
    batch, length, size = 200, 4, 30
    target = torch.randn(batch, length + 1, size, generator=generator)
    q = torch.softmax(torch.randn(batch, length, size, generator=generator), 2)
    drafts = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(batch, length)
    coins = torch.rand(batch, length, generator=generator)
    temperature = torch.linspace(0.5, 2, batch)
    tokens, num_accepted = eager.verify(target, q, drafts, temperature, coins)
    p = torch.softmax(target / temperature[:, None, None], 2)
    lengths = set()
    for b in range(batch):
        expected = 0
        while expected < length:
            x = drafts[b, expected]
            if not coins[b, expected] * q[b, expected, x] < p[b, expected, x]:
                break
            expected += 1
        lengths.add(expected)
        assert int(num_accepted[b]) == expected
        assert tokens[b, :expected].tolist() == drafts[b, :expected].tolist()
        assert int(tokens[b, expected]) >= 0
        assert (tokens[b, expected + 1 :] == -1).all()
        if expected < length:
            drawn = tokens[b, expected]
            assert p[b, expected, drawn] > q[b, expected, drawn], "not from the residual"
    assert lengths == {0, 1, 2, 3, 4}


def sampled(wrong: bool = False) -> tuple[Tensor, Tensor]:
    """First tokens of many steps with one draft each, and the target's distribution.

    Wrong: q is that of another temperature than was drafted at.
    """
    affinity = generators.affinity("virtual", 40)
    entries = eager.Entries.of(affinity)
    logits = generators.logits(1, affinity.draft_size, seed=6).expand(SAMPLES, -1)
    target = generators.logits(2, 40, seed=7).expand(SAMPLES, -1, -1)
    ones = torch.ones(SAMPLES)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        if wrong:
            drafts, _ = eager.draft(logits, ones, entries)
            q = eager.redistribute(logits, 2 * ones, entries)
            tokens, _ = eager.verify(target, q[:, None], drafts[:, None], ones)
        else:
            tokens, _ = eager.draft_and_verify(target, logits[None], ones, entries)
    return histogram(tokens[:, 0], 40), torch.softmax(target[0, 0], 0)


def test_the_output_has_the_targets_distribution() -> None:
    assert_fits(*sampled())


def test_the_test_above_would_notice_another_temperature() -> None:
    assert_caught(*sampled(wrong=True))


def test_drafts_come_from_the_redistributed_distribution() -> None:
    affinity = generators.affinity("virtual", 40)
    logits = generators.logits(1, affinity.draft_size, seed=6)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        tokens, _ = eager.draft(
            logits.expand(SAMPLES, -1), torch.ones(SAMPLES), eager.Entries.of(affinity)
        )
    q = reference.redistribute(logits, torch.ones(1), *affinity.by_target, affinity.row_top)
    assert_fits(histogram(tokens, 40), q[0])
