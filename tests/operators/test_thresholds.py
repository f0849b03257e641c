"""Which values a threshold lets through, to the last bit and the last unit of mass."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.reference import truncation
from tests import generators
from tests.devices import MACHINES


def verified(
    target: Tensor,
    temperature: float = 1.0,
    logprobs: Literal["raw", "processed"] = "processed",
    **limits: Any,
) -> rdk_cuda.Verified:
    """What is drawn of the rows `[B, 1, V]`, with log-probabilities."""
    count, size = target.shape[0], target.shape[2]
    copied = rdk_cuda.Draft.without_distribution(
        torch.full((count, 0), 0), seeds=torch.arange(count), positions=0
    )
    affinity = generators.affinity("identity", size)
    return rdk_cuda.verify(target, copied, affinity, temperature, logprobs=logprobs, **limits)


@pytest.mark.fast_in_the_emulator
def test_ties_at_a_threshold_all_stay(device: str) -> None:
    """A thousand equal logits: top-k of 1 and a tiny top-p keep all of them."""
    size, count = 4000, 20 if device in MACHINES else 2000
    row = torch.full((size,), -1.0)
    row[1500:2500] = 3.0
    for limit in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        found = verified(row.expand(count, 1, size), **limit)
        assert ((found.tokens >= 1500) & (found.tokens < 2500)).all()
        assert found.tokens.unique().numel() > count // 4
        torch.testing.assert_close(found.logprobs, torch.full((count, 1), -math.log(1000)))


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_zeros_of_either_sign_are_equal() -> None:
    """Also where they are the largest, and each chunk has one of them."""
    row = torch.full((4, 1, 3000), -2.0)
    row[:2, :, :1024] = row[2:, :, 1024:2000] = 0.0
    row[:2, :, 1024:2000] = row[2:, :, :1024] = -0.0
    for limit in ({"top_k": 7}, {"top_k": 1999}, {"top_p": 0.5}, {"top_p": 0.9}):
        found = verified(row, **limit).logprobs
        torch.testing.assert_close(found, torch.full((4, 1), -math.log(2000)))


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_zeros_of_either_sign_have_their_mass_where_another_limit_is_zero() -> None:
    """Top-k, or min-p, keeps all zeros, so without any of them top-p would need one column less."""
    row = torch.full((2, 1, 3000), -2.0)
    row[:, :, :1500] = -0.0
    row[:, :, 1500:1800] = 0.0
    row[:, :, ::300] = 1.0
    kept = int((row[0] >= 0).sum())
    expected = -math.log(kept - 10 + 10 * math.e)
    for limit in ({"top_k": 100}, {"min_p": math.exp(-1)}):
        found = verified(row, top_p=0.08, **limit)
        above = row[torch.arange(2), 0, found.tokens[:, 0]]
        torch.testing.assert_close(found.logprobs[:, 0], expected + above)


@pytest.mark.fast_in_the_emulator
def test_values_that_differ_in_their_last_bit_are_told_apart(device: str) -> None:
    """Each of them is 1/4000 of the row, so that one too many shows in the log-probability."""
    size = 4000
    order = torch.randperm(size, generator=generators.generator(1)).int()
    row = (order + torch.tensor(1.6).view(torch.int32)).view(torch.float32)
    limits = [{"top_k": k} for k in (1, 2, 7, 1000, 3999)]
    limits += [{"top_p": p} for p in (1e-6, 0.25, 0.5, 0.9997, 1 - 1e-7)]
    both = [{"top_k": k, "top_p": 0.5} for k in (2, 3, 999)]
    count = 2 if device in MACHINES else 20
    limits += [{"top_k": k} for k in range(3, 13)]  # neighbours may have one quotient
    for limit, temperature in product((*limits, *both), (1.0, 1.5)):
        found = verified(row.expand(count, 1, size), temperature, **limit)
        z = row / temperature
        kept = z >= truncation.threshold(z, truncation.Limits(**limit))
        log_p = z.double().masked_fill(~kept, -math.inf).log_softmax(0)[found.tokens]
        torch.testing.assert_close(found.logprobs.double(), log_p, rtol=0, atol=0.1 / size)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bins", [1, 2, 5])
def test_a_boundary_that_is_the_least_value_of_its_bin_is_found(bins: int) -> None:
    """CUDA's first turn has 2048 bins of 2^21 floats; and no larger value is in the same chunk."""
    four = torch.tensor(4.0).view(torch.int32)
    least = (four - (bins << 21) + 1).view(torch.float32)
    row = torch.full((3000,), -1.0)
    row[5], row[1500:1510] = 4.0, least
    found = verified(row.expand(40, 1, 3000), top_k=2)
    log_p = row.double().masked_fill(row < least, -math.inf).log_softmax(0)[found.tokens]
    torch.testing.assert_close(found.logprobs.double(), log_p, rtol=0, atol=1e-5)
    assert found.tokens.unique().numel() > 1


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_a_row_with_one_finite_value_gives_it() -> None:
    row = torch.full((1, 1, 3000), -math.inf)
    row[..., 2222] = -70.0
    found = verified(row, 0.5, "raw", top_k=5, top_p=0.3, min_p=0.5)
    assert found.tokens.tolist() == [[2222]]
    assert found.logprobs.tolist() == [[0.0]]


def thresholds(z: Tensor, **limits: Tensor) -> Tensor:
    """Those of drafts whose logits are these rows, at temperature 1."""
    affinity, rows = generators.affinity("identity", z.shape[1]), torch.arange(z.shape[0])
    ones = torch.ones(z.shape[0])
    stats: Tensor = torch.ops.rdk.draft(z, ones, rows, rows, *affinity.by_draft, **limits)[1]
    return stats[:, -1]


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_masses_are_those_of_the_contract_to_the_last_unit() -> None:
    """The next float32 of top_p decides between two values, if the second one's mass is exact."""
    random, size = Random(7), 60
    rows, given = [], []
    for _ in range(100):
        first, x = random.randrange(1, 4), torch.tensor(random.uniform(-6.0, -0.1))
        row = torch.cat([torch.zeros(first), x.expand(size - first)])
        whole = first * 2.0**40
        share = whole / (whole + (size - first) * int(truncation.masses(x)))
        for _ in range(2):
            rows.append(row)
        below = torch.tensor(share).nextafter(torch.tensor(0.0))
        given += [below, torch.tensor(share)]
    z, top_p = torch.stack(rows), torch.stack(given)
    near = [
        truncation.threshold(row, truncation.Limits(top_p=float(p)))
        for row, p in zip(z, top_p, strict=True)
    ]
    assert torch.equal(thresholds(z, top_p=top_p), torch.tensor(near))


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_the_lowest_numbers_are_told_apart() -> None:
    lowest = torch.finfo(torch.float32).min
    values = [0.0, lowest * 0.999, lowest * 0.9999, lowest, -math.inf, -math.inf]
    z = torch.tensor(values).expand(5, -1).contiguous()
    found = thresholds(z, top_k=torch.arange(1, 6, dtype=torch.int32))
    assert found.tolist() == [*z[0, :4].tolist(), -math.inf]
