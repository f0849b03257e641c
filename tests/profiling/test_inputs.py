"""The benchmark's inputs are what its rows say, and its plain PyTorch is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from profiling.bench import eager
from profiling.bench.cases import (
    ACCEPTANCES,
    DTYPES,
    OPERATORS,
    PAIR,
    SAMPLERS,
    Case,
    preset_cases,
)
from profiling.bench.workloads import build
from rdk_cuda import _ops as operators
from tests import generators
from tests.statistics.chi_square import assert_caught, assert_fits, histogram

CPU = torch.device("cpu")
VERIFY = Case("verify", "float32", 2000, 500, batch=4, draft_length=4, acceptance="high")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_drafts_are_mostly_rejected_or_mostly_accepted(sampler: str, dtype: str) -> None:
    cases = {a: replace(VERIFY, acceptance=a, sampler=sampler, dtype=dtype) for a in ACCEPTANCES}
    means = {
        a: torch.tensor(build(case, CPU).accepted).double().mean() for a, case in cases.items()
    }
    assert means["low"] < 1
    assert means["high"] > 2.5


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_step_decides_what_its_verification_alone_decides(sampler: str) -> None:
    verify, step, without = (
        build(replace(VERIFY, sampler=sampler, **change), CPU)  # type: ignore[arg-type]
        for change in ({}, {"operator": PAIR}, {"stats": False})
    )
    for index in range(verify.sets):
        tokens, accepted = verify.ours(index)  # type: ignore[misc]
        assert tuple(accepted.tolist()) == verify.accepted[index]
        for other in (step, without):
            assert torch.equal(other.ours(index)[0], tokens)  # type: ignore[index]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", ["tiny", "short", "serving"])
def test_a_preset_has_every_operator_and_no_case_twice(preset: str, device: str) -> None:
    cases = preset_cases(preset, device)
    assert {case.operator for case in cases} == set(OPERATORS)
    assert len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize("sparse", [False, True], ids=["scatter", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["identity", "intersection", "first-order", "virtual", "mixed-2"])
def test_eager_redistribute_is_that_of_the_operator(
    kind: str, dtype: torch.dtype, sparse: bool
) -> None:
    affinity = generators.affinity(kind, 700)
    entries = eager.Entries.of(affinity)
    logits = generators.logits(3, affinity.draft_size, seed=3, dtype=dtype)
    temperature = torch.tensor([0.5, 1.0, 1.5])
    ours = operators.redistribute(logits, temperature, *affinity.by_target, affinity.row_top)
    q = eager.redistribute(logits, temperature, entries, entries.matrix() if sparse else None)
    torch.testing.assert_close(q, ours, rtol=1e-5, atol=1e-7)


def test_eager_gather_logits_is_that_of_the_operator() -> None:
    hidden, weight = torch.randn(2, 64), torch.randn(50, 64)
    tokens = torch.randint(0, 50, (2, 7), dtype=torch.int32)
    ours, theirs = (
        f(hidden, weight, tokens) for f in (operators.gather_logits, eager.gather_logits)
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_eager_accepts_a_draft_exactly_where_its_coin_says() -> None:
    generator = torch.Generator().manual_seed(5)
    batch, length, size = 200, 4, 30
    target = torch.randn(batch, length + 1, size, generator=generator)
    q = torch.softmax(torch.randn(batch, length, size, generator=generator), 2)
    drafts = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(batch, length)
    coins = torch.rand(batch, length, generator=generator)
    temperature = torch.linspace(0.5, 2, batch)
    tokens, num_accepted = eager.verify(target, q, drafts, temperature, coins)
    p = torch.softmax(target / temperature[:, None, None], 2)
    for b in range(batch):
        expected = 0
        while expected < length:
            x = drafts[b, expected]
            if not coins[b, expected] * q[b, expected, x] < p[b, expected, x]:
                break
            expected += 1
        assert int(num_accepted[b]) == expected
        assert tokens[b, :expected].tolist() == drafts[b, :expected].tolist()
        assert int(tokens[b, expected]) >= 0
        assert (tokens[b, expected + 1 :] == -1).all()
        if expected < length:
            drawn = tokens[b, expected]
            assert p[b, expected, drawn] > q[b, expected, drawn], "not from the residual"
    assert set(num_accepted.tolist()) == {0, 1, 2, 3, 4}


def sampled(wrong: bool) -> tuple[Tensor, Tensor]:
    """First tokens of many steps with one draft each, and the target's distribution.

    Wrong: q is that of another temperature than was drafted at.
    """
    affinity, samples = generators.affinity("virtual", 40), 40_000
    entries = eager.Entries.of(affinity)
    logits = generators.logits(1, affinity.draft_size, seed=6).expand(samples, -1)
    target = generators.logits(2, 40, seed=7).expand(samples, -1, -1)
    ones = torch.ones(samples)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        if wrong:
            drafts, _ = eager.draft(logits, ones, entries)
            q = eager.redistribute(logits, 2 * ones, entries)
            tokens, _ = eager.verify(target, q[:, None], drafts[:, None], ones)
        else:
            tokens, _ = eager.draft_and_verify(target, logits[None], ones, entries)
    return histogram(tokens[:, 0], 40), torch.softmax(target[0, 0], 0)


def test_eager_output_has_the_targets_distribution_and_that_of_a_wrong_one_has_not() -> None:
    assert_fits(*sampled(wrong=False))
    assert_caught(*sampled(wrong=True))
