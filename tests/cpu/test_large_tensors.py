"""Rows behind the first 2^31 elements of a tensor. Only the pages that are touched take memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests import generators

FAR = 2**31 + 24


@pytest.fixture(scope="module")
def far() -> Tensor:
    """Elements that nothing is written to but what a test puts there."""
    try:
        return torch.empty(FAR + 10_000, dtype=torch.bfloat16)
    except RuntimeError as error:  # no address space to be had
        pytest.skip(str(error))


def spread_out(rows: Tensor, far: Tensor) -> Tensor:
    """The two rows, 2^31 + 24 elements apart."""
    apart = far.as_strided((2, rows.shape[1]), (FAR, 1))
    apart.copy_(rows)
    return apart


def test_draft_and_redistribute(far: Tensor) -> None:
    affinity = generators.affinity("virtual", 2600)
    rows = generators.logits(2, affinity.draft_size, dtype=torch.bfloat16)
    arguments = (torch.ones(2), torch.arange(2), torch.arange(2))
    expected = torch.ops.rdk.draft(rows, *arguments, *affinity.by_draft)
    probs = torch.ops.rdk.redistribute(rows, arguments[0], *affinity.by_target, affinity.row_top)
    apart = spread_out(rows, far)
    for actual, same in zip(
        torch.ops.rdk.draft(apart, *arguments, *affinity.by_draft), expected, strict=True
    ):
        assert torch.equal(actual, same)
    actual = torch.ops.rdk.redistribute(apart, arguments[0], *affinity.by_target, affinity.row_top)
    assert torch.equal(actual, probs)


def test_verify(far: Tensor) -> None:
    """Seeds enough for the draft to be accepted and rejected."""
    batch = generators.batch(generators.affinity("virtual", 2600), [1], dtype=torch.bfloat16)
    apart = batch.replace(target_logits=spread_out(batch.target_logits, far))
    accepted = set()
    for seed in range(20):
        seeds = torch.tensor([seed])
        tokens, count = torch.ops.rdk.verify(*batch.replace(step_keys=seeds).arguments())
        same, same_count = torch.ops.rdk.verify(*apart.replace(step_keys=seeds).arguments())
        assert torch.equal(tokens, same)
        assert torch.equal(count, same_count)
        accepted.add(int(count))
    assert accepted == {0, 1}


def test_gather_logits(far: Tensor) -> None:
    weight = generators.logits(2, 515, seed=1, dtype=torch.bfloat16)
    hidden = generators.logits(1, 515, seed=2, dtype=torch.bfloat16)
    tokens = torch.tensor([[1, 0, 1, -1]])
    expected = torch.ops.rdk.gather_logits(hidden, weight, tokens)
    actual = torch.ops.rdk.gather_logits(hidden, spread_out(weight, far), tokens)
    assert torch.equal(actual, expected)
