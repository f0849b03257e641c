"""The verify kernel decides what the reference and the CPU operator decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rdk_cuda import reference
from tests import generators
from tests.reference.test_verify import *  # noqa: F403
from tests.reference.test_verify import assert_verifies_as_the_reference
from tests.tolerances import assert_same_draws

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("size", [1, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    assert_verifies_as_the_reference(generators.batch(affinity, [2, 0, 3], dynamic=5))


@pytest.mark.parametrize("columns", [0, 1, 7, 1024, 1025])
def test_any_number_of_dynamic_columns(columns: int) -> None:
    affinity = generators.affinity("mixed-1", 2500)
    batch = generators.batch(affinity, [2, 1, 0, 3, 2], dynamic=columns)
    if columns == 0:
        batch = batch.replace(
            dynamic_tokens=torch.empty(8, 0, dtype=torch.int32), dynamic_logits=torch.empty(8, 0)
        )
    assert_verifies_as_the_reference(batch)


@pytest.mark.parametrize("draft", generators.DTYPES, ids=str)
@pytest.mark.parametrize("target", generators.DTYPES, ids=str)
def test_target_and_drafter_of_different_dtypes(target: torch.dtype, draft: torch.dtype) -> None:
    batch = generators.batch(
        generators.affinity("mixed-2", 2500), [3, 1] * 5, dtype=draft, dynamic=9
    )
    assert_verifies_as_the_reference(batch.replace(target_logits=batch.target_logits.to(target)))


@pytest.mark.parametrize("length", [8, 9, 17])
def test_more_positions_than_a_block_has_warps(length: int) -> None:
    affinity = generators.affinity("identity", 60)
    batch = generators.batch(affinity, [length, 1, length])
    rows = torch.arange(batch.draft_token_ids.numel())
    rows += torch.repeat_interleave(torch.arange(3), batch.draft_offsets.diff())
    target = batch.target_logits.clone()
    target[rows] = batch.draft_logits  # accepted to the end
    batch = batch.replace(target_logits=target)
    assert_verifies_as_the_reference(batch)
    assert torch.ops.rdk.verify(*batch.arguments())[1].tolist() == [length, 1, length]


def test_four_priors() -> None:
    """The most that an affinity may have."""
    affinity = generators.affinity("mixed-4", 2500)
    assert_verifies_as_the_reference(generators.batch(affinity, [3, 1, 2] * 3))


@pytest.mark.parametrize("sequences", [100, 300])
def test_the_cpu_operator_decides_the_same(cpu: Any, sequences: int) -> None:
    """Where it does not, float64 shows a boundary within 1e-5 (section 5)."""
    affinity = generators.affinity("mixed-2", 2500)
    batch = generators.batch(affinity, [2] * sequences, dtype=torch.bfloat16, dynamic=9)
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    expected = cpu.verify(*batch.arguments())
    margins = torch.full((sequences,), torch.inf, dtype=torch.float64)
    if not torch.equal(tokens, expected[0]):
        trace = reference.Trace()
        reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
        margins = trace.margins(sequences)
    assert_same_draws(tokens, expected[0], margins)
    assert_same_draws(num_accepted, expected[1], margins)
