"""The draft kernel draws what the reference and the CPU operator draw, and keeps their stats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rdk_cuda import reference
from tests import generators
from tests.reference.test_draft import *  # noqa: F403
from tests.reference.test_draft import (
    arguments,
    assert_drafts_as_the_reference,
    pairs_to_divide,
)
from tests.tolerances import assert_same_draws

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("size", [1, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    """``identity`` has as many drafter columns; ``virtual`` half as many and long rows."""
    assert_drafts_as_the_reference(*arguments(generators.affinity(kind, size), 3, dynamic=5))


@pytest.mark.parametrize("columns", [0, 1, 7, 1024, 1025])
@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_any_number_of_dynamic_columns(columns: int, temperature: float) -> None:
    affinity = generators.affinity("mixed-1", 2500)
    given = list(arguments(affinity, 20, temperature=temperature))
    given[-2] = generators.dynamic_tokens(20, columns, 2500)
    given[-1] = generators.logits(20, columns, seed=1)
    assert_drafts_as_the_reference(*given)


def test_four_priors() -> None:
    """The most that an affinity may have."""
    assert_drafts_as_the_reference(*arguments(generators.affinity("mixed-4", 2500), 60))


@pytest.mark.parametrize("size", [60, 2500])
def test_the_cpu_operator_draws_the_same(cpu: Any, size: int) -> None:
    """Fewer than 5 in 10,000 may differ, each at a boundary within 1e-5 (section 5)."""
    given = arguments(generators.affinity("mixed-2", size), 1000, temperature=0.8, dynamic=9)
    tokens, _ = torch.ops.rdk.draft(*given)
    expected, _ = cpu.draft(*given)
    different = tokens != expected
    trace = reference.Trace()
    if different.any():
        rows = [x[different] if i < 4 or i > 11 else x for i, x in enumerate(given)]
        reference.draft(*rows, dtype=torch.float64, trace=trace)
    margins = torch.full((1000,), torch.inf, dtype=torch.float64)
    margins[different] = trace.margins(int(different.sum()))
    assert_same_draws(tokens, expected, margins)


@pytest.mark.parametrize(
    "columns", [(0, 1), (7, 8), (255, 256), (5, 1023), (1023, 1024), (9, 2499)]
)
def test_a_greedy_tie_between_lanes_and_chunks_goes_to_the_lower_column(
    columns: tuple[int, int],
) -> None:
    affinity = generators.affinity("identity", 2500)
    logits = generators.logits(1, 2500)
    logits[0, list(columns)] = 50.0
    integer = torch.zeros(1, dtype=torch.int64)
    token, _ = torch.ops.rdk.draft(logits, torch.zeros(1), integer, integer, *affinity.by_draft)
    assert int(token) == columns[0]


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
def test_rows_at_every_alignment(dtype: torch.dtype) -> None:
    """A row may start at any element, so that 128-bit loads are or are not aligned."""
    given = arguments(generators.affinity("mixed-1", 2500), 3, dtype=dtype, dynamic=9)
    expected = torch.ops.rdk.draft(*given)
    for before in range(9):
        for after in (8 - before, 13):
            logits = generators.in_wider_rows(given[0], before, after)
            actual = torch.ops.rdk.draft(logits, *given[1:])
            assert torch.equal(actual[0], expected[0])
            assert torch.equal(actual[1], expected[1])


def test_a_logit_is_multiplied_by_the_reciprocal_of_its_temperature() -> None:
    """Both rounded to float32; at other temperatures than these a power of 2 comes between."""
    logits, temperature = pairs_to_divide()
    usual = (temperature >= 2.0**-126) & (temperature <= 2.0**126)
    logits, temperature = logits[usual], temperature[usual]
    rows = len(logits)
    affinity = generators.affinity("identity", 1)
    words = torch.zeros(rows, dtype=torch.int64)
    _, stats = torch.ops.rdk.draft(logits[:, None], temperature, words, words, *affinity.by_draft)
    assert torch.equal(stats[:, 0], logits * (1 / temperature))
