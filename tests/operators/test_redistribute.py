"""`rdk::redistribute` is as exact as PyTorch's own float32 arithmetic, whatever it is given."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.tolerances import SUM_TO_ONE, assert_as_exact_as_torch

pytestmark = pytest.mark.usefixtures("device")


def assert_exact(
    affinity: Affinity,
    logits: Tensor,
    temperature: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> None:
    arguments = (
        logits,
        temperature,
        *affinity.by_target,
        affinity.row_top,
        dynamic_tokens,
        dynamic_logits,
    )
    actual = torch.ops.rdk.redistribute(*arguments)
    assert actual.dtype == torch.float32
    assert_as_exact_as_torch(
        actual,
        reference.redistribute(*arguments),
        reference.redistribute(*arguments, dtype=torch.float64),
    )
    assert ((actual.double().sum(-1) - 1).abs() < SUM_TO_ONE).all()


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    rows = 5
    logits = generators.logits(rows, affinity.draft_size, dtype=dtype, forbidden=0.1)
    tokens = generators.dynamic_tokens(rows, 9, 2500)
    values = generators.logits(rows, 9, seed=1, dtype=dtype)
    temperature = torch.tensor([1.0, 0.3, 2.0, 0.0, 1.0])
    assert_exact(affinity, logits, temperature)
    assert_exact(affinity, logits, temperature, tokens, values)


@pytest.mark.parametrize("size", [1, 2, 111, 1024, 1025, 8193, 32000])
@pytest.mark.parametrize("kind", ["intersection", "mixed-3"])
def test_awkward_sizes(kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    rows = 3 if size < 32000 else 2
    assert_exact(affinity, generators.logits(rows, affinity.draft_size), torch.ones(rows))


@pytest.mark.parametrize("size", [128256, 151936, 262144])
def test_large_vocabularies(size: int) -> None:
    affinity = generators.affinity("virtual", size)
    logits = generators.logits(2, affinity.draft_size, dtype=torch.bfloat16)
    tokens = generators.dynamic_tokens(2, 300, size)
    values = generators.logits(2, 300, seed=1, dtype=torch.bfloat16)
    assert_exact(affinity, logits, torch.tensor([1.0, 0.7]), tokens, values)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (99,), (2, 3), (2, 0, 3), (2, 2, 2)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    affinity = generators.affinity("mixed-1", 111)
    flat = generators.logits(torch.Size(shape).numel(), affinity.draft_size)
    logits = flat.reshape(*shape, affinity.draft_size)
    temperature = torch.full(shape, 0.9)
    assert_exact(affinity, logits, temperature)


def test_a_dynamic_token_adds_to_what_the_static_columns_give() -> None:
    """Duplicates add up and unused columns do nothing: q stays a distribution (section 2)."""
    affinity = generators.affinity("identity", 4)
    logits = torch.zeros(1, 4)
    tokens = torch.tensor([[2, -1, 2, 4]], dtype=torch.int32)
    values = torch.tensor([[0.0, torch.nan, 0.0, torch.inf]])
    q = torch.ops.rdk.redistribute(
        logits, torch.ones(1), *affinity.by_target, affinity.row_top, tokens, values
    )
    torch.testing.assert_close(q, torch.tensor([[1.0, 1.0, 3.0, 1.0]]) / 6)


def test_temperature_zero_is_one_hot() -> None:
    affinity = generators.affinity("mixed-2", 500)
    logits = generators.logits(50, affinity.draft_size, dtype=torch.bfloat16)
    tokens = generators.dynamic_tokens(50, 9, 500)
    values = generators.logits(50, 9, seed=1, dtype=torch.bfloat16)
    arguments = (logits, torch.zeros(50), *affinity.by_target, affinity.row_top, tokens, values)
    actual = torch.ops.rdk.redistribute(*arguments)
    assert torch.equal(actual, reference.redistribute(*arguments))
    assert torch.equal(actual.max(1).values, torch.ones(50))


# -------------------------------------------------------------- where a kernel changes its path


@pytest.mark.parametrize("size", [1, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    tokens, values = generators.dynamic_tokens(3, 5, size), generators.logits(3, 5, seed=1)
    logits = generators.logits(3, affinity.draft_size)
    assert_exact(affinity, logits, torch.full((3,), 0.7), tokens, values)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("columns", [0, 1, 7, 1025])
def test_groups_of_rows_with_any_number_of_dynamic_columns(columns: int, rows: int) -> None:
    affinity = generators.affinity("mixed-4", 1100)
    tokens = generators.dynamic_tokens(rows, columns, 1100)
    values = generators.logits(rows, columns, seed=1)
    temperature = torch.tensor([1.0, 0.0, 0.5] * 3)[:rows]
    logits = generators.logits(rows, affinity.draft_size)
    assert_exact(affinity, logits, temperature, tokens, values)


def test_rows_without_distribution_are_written() -> None:
    """So large an output comes from fresh pages, which are zero, and the result is NaN."""
    affinity = generators.affinity("intersection", 128256)
    rows = 70
    torch.use_deterministic_algorithms(False)  # which would fill outputs with NaN
    q = torch.ops.rdk.redistribute(
        torch.zeros(rows, affinity.draft_size),
        torch.full((rows,), math.nan),
        *affinity.by_target,
        affinity.row_top,
    )
    assert q.isnan().all()
