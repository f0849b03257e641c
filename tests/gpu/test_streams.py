"""Kernels run on the caller's stream and device, several at once, and the host does not wait."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from tests.proof.emulated.workloads import WORKLOADS
from tests.tolerances import assert_same_bits

from .recorded import Call, assert_equal, recorded

ROUNDS = 20
LONG = 100_000_000  # cycles: fifty milliseconds, far more than it takes to ask for a call


def test_streams_side_by_side_give_what_one_after_the_other_gives(cuda: torch.device) -> None:
    """Each stream has work of its own, and workspace goes from one call to the next."""
    work = [recorded(name).on(cuda) for name in WORKLOADS]
    expected = [call(torch.ops.rdk) for call in work]
    streams = [torch.cuda.Stream(cuda) for _ in work]
    torch.cuda.synchronize(cuda)
    results: list[tuple[int, tuple[Tensor, ...]]] = []
    for _ in range(ROUNDS):
        for index, (call, stream) in enumerate(zip(work, streams, strict=True)):
            with torch.cuda.stream(stream):
                results.append((index, call(torch.ops.rdk)))
    torch.cuda.synchronize(cuda)
    for index, actual in results:
        assert_equal(actual, expected[index])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_call_waits_for_inputs_that_come_late_on_its_stream(
    cuda: torch.device, workload: str
) -> None:
    """On another stream than the caller's it would read what the inputs held before."""
    late = recorded(workload).with_other_values().on(cuda)
    expected = late(torch.ops.rdk)
    early = recorded(workload).on(cuda)
    side = torch.cuda.Stream(cuda)
    with torch.cuda.stream(side):
        early(torch.ops.rdk)  # leaves memory for this stream, or the next would ask the driver
    torch.cuda.synchronize(cuda)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        for tensor, value in zip(early.arguments, late.arguments, strict=True):
            if isinstance(tensor, Tensor):
                tensor.copy_(value)
        actual = early(torch.ops.rdk)
        still_asleep = not side.query()
    side.synchronize()
    assert still_asleep, "the call waited for the device"
    assert_equal(actual, expected)


def test_threads_with_a_stream_each(cuda: torch.device) -> None:
    names = list(WORKLOADS)[:8]
    work = [recorded(name).on(cuda) for name in names]
    expected = [call(torch.ops.rdk) for call in work]
    torch.cuda.synchronize(cuda)
    results: dict[int, list[tuple[Tensor, ...]]] = {}

    def run(index: int, call: Call) -> None:
        with torch.cuda.stream(torch.cuda.Stream(cuda)):
            results[index] = [call(torch.ops.rdk) for _ in range(ROUNDS)]
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(len(work)))
    for index, repeats in results.items():
        for actual in repeats:
            assert_equal(actual, expected[index])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_tensors_of_another_device_than_the_current_one(cuda: torch.device, workload: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", 1)
    expected = recorded(workload).on(cuda)(torch.ops.rdk)
    with torch.cuda.device(cuda):
        actual = recorded(workload).on(other)(torch.ops.rdk)
        assert torch.cuda.current_device() == cuda.index
    for ours, same in zip(actual, expected, strict=True):
        assert ours.device == other
        assert_same_bits(ours.cpu(), same.cpu())
