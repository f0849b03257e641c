"""What stands for the operators lays tensors out on the device as they were, and hands on the rest.

On the CPU in the GPU's place, so these run everywhere.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdk_cuda.affinity import Affinity
from tests import generators
from tests.gpu.recorded import FREE, recorded
from tests.gpu.stand_in import laid_out_alike, moved
from tests.proof.emulated.batches import BATCHES, repeated
from tests.proof.emulated.workloads import WORKLOADS, batch

CPU = torch.device("cpu")

LAYOUTS = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "a slice of rows": torch.arange(12.0).view(3, 4)[1:],
    "a slice of columns": generators.in_wider_rows(torch.arange(12.0).view(3, 4)),
    "expanded": torch.arange(4.0).expand(1000, 4),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "every other": torch.arange(12, dtype=torch.int32)[1::2],
    "half precision at an odd offset": torch.arange(9.0).bfloat16()[1:],
    "no rows": torch.zeros(5, 4)[:0],
    "nothing": torch.zeros(0, dtype=torch.int64),
    "a number": torch.tensor(3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_dtype_strides_and_offset_are_kept_in_memory_of_its_own(layout: str) -> None:
    tensor = LAYOUTS[layout]
    copy = laid_out_alike(tensor, CPU)
    assert torch.equal(copy, tensor)
    assert copy.dtype == tensor.dtype
    assert (copy.stride(), copy.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert copy.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
    assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_tensors_are_found_in_batches_affinities_and_dictionaries_and_nothing_else_moves() -> None:
    made = batch()
    copied = moved({"batch": made, "affinity": made.affinity}, CPU)
    assert copied["batch"].target_logits is not made.target_logits
    assert torch.equal(copied["batch"].target_logits, made.target_logits)
    assert copied["batch"].max_draft == made.max_draft
    assert copied["batch"].draft_stats is None
    assert isinstance(copied["affinity"], Affinity)
    there = torch.empty(3, device="meta")
    given = (None, 7, 0.5, "text", there, [None, there])
    assert moved(given, CPU) == given
    assert moved(given, CPU)[4] is there


# ------------------------------------------------------------------------- recorded and repeated


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_recorded_call_is_the_workload_and_can_have_other_values(workload: str) -> None:
    """With which graphs are replayed; an affinity's tensors are never touched."""
    call = recorded(workload)
    results = call(torch.ops.rdk)
    whole = WORKLOADS[workload]()  # of several calls the last is recorded
    for actual, expected in zip(results, whole[-len(results) :], strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    other = call.with_other_values()
    free = set(FREE[call.operator])
    for i, (before, after) in enumerate(zip(call.arguments, other.arguments, strict=True)):
        if isinstance(before, Tensor):
            assert before.shape == after.shape
            assert after is before or i in free
    others = zip(results, other(torch.ops.rdk), strict=True)
    assert any(not torch.equal(*pair) for pair in others)


@pytest.mark.parametrize("kind", BATCHES)
def test_a_repeated_batch_decides_the_same_again_and_again(kind: str) -> None:
    few = BATCHES[kind]()
    expected = torch.ops.rdk.verify(*few.arguments())
    actual = torch.ops.rdk.verify(*repeated(few, 3).arguments())
    assert repeated(few, 3).size == 3 * few.size
    for many, same in zip(actual, expected, strict=True):
        assert torch.equal(many, same.repeat(3, *[1] * (same.dim() - 1)))
