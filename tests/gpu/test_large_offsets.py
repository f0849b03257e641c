"""Rows that lie beyond 2^31 elements of their tensor are read where they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests import generators
from tests.operators.test_draft import arguments

from .stand_in import moved

FAR = 2**30 + 3  # elements between rows: the third row starts beyond 2^31
NEEDED = 16 * 2**30  # bytes: the largest tensor here has four rows of int32


@pytest.fixture(autouse=True)
def _memory(cuda: torch.device) -> Iterator[None]:
    free, _ = torch.cuda.mem_get_info(cuda)
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free GPU memory, {free >> 30} are there")
    yield
    torch.cuda.empty_cache()


def far_apart(rows: Tensor) -> Tensor:
    count = (rows.shape[0] - 1) * FAR + rows.shape[1]
    far = torch.empty(count, dtype=rows.dtype, device=rows.device).as_strided(rows.shape, (FAR, 1))
    return far.copy_(rows)


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for ours, same in zip(actual, expected, strict=True):
        assert torch.equal(ours, same)


@pytest.mark.parametrize("index", [0, -2, -1])
def test_draft_and_redistribute(cuda: torch.device, index: int) -> None:
    affinity = generators.affinity("mixed-1", 300).to(cuda)
    given = moved(
        list(arguments(generators.affinity("mixed-1", 300), 4, dtype=torch.bfloat16, dynamic=5)),
        cuda,
    )
    columns = (*affinity.by_target, affinity.row_top)
    drafted = torch.ops.rdk.draft(*given)
    probs = torch.ops.rdk.redistribute(*given[:2], *columns, *given[-2:])
    given[index] = far_apart(given[index])
    assert_same(torch.ops.rdk.draft(*given), drafted)
    assert torch.equal(torch.ops.rdk.redistribute(*given[:2], *columns, *given[-2:]), probs)


@pytest.mark.parametrize(
    "name", ["target_logits", "draft_logits", "dynamic_tokens", "dynamic_logits"]
)
def test_verify(cuda: torch.device, name: str) -> None:
    batch = generators.batch(
        generators.affinity("mixed-1", 300), [2, 1], dtype=torch.bfloat16, dynamic=5
    )
    batch.target_logits[0, batch.draft_token_ids[0]] = 60.0  # so that later rows matter
    given = moved(batch, cuda)
    expected = torch.ops.rdk.verify(*given.arguments())
    assert expected[1][0] > 0
    far = given.replace(**{name: far_apart(getattr(given, name))})
    assert_same(torch.ops.rdk.verify(*far.arguments()), expected)


def test_gather_logits(cuda: torch.device) -> None:
    hidden = generators.logits(3, 70, dtype=torch.bfloat16).to(cuda)
    weight = generators.logits(4, 70, seed=1, dtype=torch.bfloat16).to(cuda)
    tokens = torch.tensor([[0, 3], [2, 1], [3, 3]], device=cuda)
    expected = torch.ops.rdk.gather_logits(hidden, weight, tokens)
    for given in ((far_apart(hidden), weight), (hidden, far_apart(weight))):
        assert torch.equal(torch.ops.rdk.gather_logits(*given, tokens), expected)
