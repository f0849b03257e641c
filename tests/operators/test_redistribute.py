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
    rows: int,
    temperature: Tensor,
    dynamic: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    forbidden: float = 0.0,
) -> Tensor:
    """Random logits over `dynamic` columns more than the drafter has; q, compared."""
    logits = generators.logits(rows, affinity.draft_size, dtype=dtype, forbidden=forbidden)
    logits = logits.reshape(*temperature.shape, affinity.draft_size)
    columns: tuple[Tensor | None, ...] = (None, None)
    if dynamic is not None:
        tokens = generators.dynamic_tokens(rows, dynamic, affinity.target_size)
        columns = tokens, generators.logits(rows, dynamic, seed=1, dtype=dtype)
    arguments = (logits, temperature, *affinity.by_target, affinity.row_top, *columns)
    actual: Tensor = torch.ops.rdk.redistribute(*arguments)
    assert actual.dtype == torch.float32
    assert_as_exact_as_torch(
        actual,
        reference.redistribute(*arguments),
        reference.redistribute(*arguments, dtype=torch.float64),
    )
    assert ((actual.double().sum(-1) - 1).abs() < SUM_TO_ONE).all()
    return actual


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    temperature = torch.tensor([1.0, 0.3, 2.0, 0.0, 1.0])
    for dynamic in (None, 9):
        assert_exact(affinity, 5, temperature, dynamic, dtype=dtype, forbidden=0.1)


@pytest.mark.parametrize("size", [1, 2, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-3"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    assert_exact(generators.affinity(kind, size), 3, torch.full((3,), 0.7), 5)


@pytest.mark.parametrize("size", [128256, 151936, 262144])
def test_large_vocabularies(size: int) -> None:
    affinity = generators.affinity("virtual", size)
    assert_exact(affinity, 2, torch.tensor([1.0, 0.7]), 300, dtype=torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("columns", [0, 1, 7, 1025])
def test_groups_of_rows_with_any_number_of_dynamic_columns(columns: int, rows: int) -> None:
    temperature = torch.tensor([1.0, 0.0, 0.5] * 3)[:rows]
    assert_exact(generators.affinity("mixed-4", 1100), rows, temperature, columns)


def test_a_dynamic_token_adds_to_what_the_static_columns_give() -> None:
    """Duplicates add up and unused columns do nothing: q stays a distribution (section 2)."""
    affinity = generators.affinity("identity", 4)
    tokens = torch.tensor([[2, -1, 2, 4]], dtype=torch.int32)
    values = torch.tensor([[0.0, torch.nan, 0.0, torch.inf]])
    columns = (*affinity.by_target, affinity.row_top)
    q = torch.ops.rdk.redistribute(torch.zeros(1, 4), torch.ones(1), *columns, tokens, values)
    torch.testing.assert_close(q, torch.tensor([[1.0, 1.0, 3.0, 1.0]]) / 6)


def test_quotients_are_those_of_a_division() -> None:
    """To the bit, also of subnormal numbers: a sum of 1 gives the masses, a sum of 3 a third."""
    size = 1003
    affinity = generators.affinity("identity", size)
    columns = (*affinity.by_target, affinity.row_top)
    logits = torch.linspace(-30.0, -100.0, size)[None].repeat(2, 1)
    logits[0, :3] = torch.tensor([0.0, -200.0, -200.0])
    logits[1, :3] = 0.0
    masses, thirds = torch.ops.rdk.redistribute(logits, torch.ones(2), *columns)
    assert masses[0] == 1
    assert torch.equal(thirds[3:], masses[3:] / 3)
    assert ((masses > 0) & (masses < 2.0**-110)).any()


@pytest.mark.fast_in_the_emulator
def test_temperature_zero_is_one_hot() -> None:
    zeros = torch.zeros(50)
    q = assert_exact(generators.affinity("mixed-2", 500), 50, zeros, 9, dtype=torch.bfloat16)
    assert torch.equal(q.max(1).values, torch.ones(50))


def test_rows_without_distribution_are_written() -> None:
    """So large an output comes from fresh pages, which are zero, and the result is NaN."""
    affinity = generators.affinity("intersection", 128256)
    torch.use_deterministic_algorithms(False)  # which would fill outputs with NaN
    logits, temperature = torch.zeros(70, affinity.draft_size), torch.full((70,), math.nan)
    q = torch.ops.rdk.redistribute(logits, temperature, *affinity.by_target, affinity.row_top)
    assert q.isnan().all()
