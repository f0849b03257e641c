"""The redistribute kernel is as exact as PyTorch's own float32 arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from tests import generators
from tests.reference.test_redistribute import *  # noqa: F403
from tests.reference.test_redistribute import assert_exact

pytestmark = pytest.mark.usefixtures("kernels")


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
