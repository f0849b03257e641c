"""Every call can be captured into a CUDA graph, is one launch there, and replays on new inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests.operators.test_pytorch import step
from tests.operators.test_refusals import calls
from tests.proof.emulated.workloads import WORKLOADS

from .recorded import assert_equal, recorded
from .stand_in import moved

# The driver's CUgraphNodeType of one.
KERNEL = 0

Outputs = tuple[Tensor, ...]


@pytest.fixture
def launch_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From when it is called on."""

    def asked(value: str) -> None:
        monkeypatch.setenv("RDK_EARLY_LAUNCH", value)
        rdk_cuda._operators.forget_environment()

    yield lambda: asked("1")
    asked("")


def warmed_up(work: Callable[[], Outputs]) -> None:
    """Before a capture, on a side stream, as PyTorch's notes on graphs say."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)


def captured(
    work: Callable[[], Outputs], *, keep_graph: bool = False
) -> tuple[torch.cuda.CUDAGraph, Outputs]:
    warmed_up(work)
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with torch.cuda.graph(graph):
        outputs = work()
    return graph, outputs


def replayed(graph: torch.cuda.CUDAGraph, outputs: Outputs) -> Outputs:
    """What a replay writes; nothing is left of what was there before."""
    for output in outputs:
        output.fill_(77)
    graph.replay()
    return tuple(output.clone() for output in outputs)


def rewrite(inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    for tensor, value in zip(inputs, values, strict=True):
        if isinstance(tensor, Tensor):
            tensor.copy_(value)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_replays_are_eager_calls_also_with_rewritten_inputs(
    cuda: torch.device, workload: str
) -> None:
    """Several replays of each: the second would find used tickets, if any were left."""
    first, other = recorded(workload), recorded(workload).with_other_values()
    expected = {call: call.on(cuda)(torch.ops.rdk) for call in (first, other)}
    static = first.on(cuda)
    graph, outputs = captured(lambda: static(torch.ops.rdk))
    for call in (first, first, other, other, first):
        rewrite(static.arguments, call.arguments)
        assert_equal(replayed(graph, outputs), expected[call])
        # The graph's workspace is its own: calls outside of it do not disturb the next replay.
        assert_equal(other.on(cuda)(torch.ops.rdk), expected[other])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_call_that_is_launched_early_reads_what_kernels_before_it_write(
    cuda: torch.device, workload: str, launch_early: Callable[[], None]
) -> None:
    """In a graph, behind a kernel that chooses between two sets of inputs; and behind copies."""
    first, other = recorded(workload), recorded(workload).with_other_values()
    expected = [call.on(cuda)(torch.ops.rdk) for call in (first, other)]
    launch_early()
    static, sources = first.on(cuda), [call.on(cuda).arguments for call in (first, other)]
    takes_other = torch.zeros((), dtype=torch.bool, device=cuda)

    def chosen() -> Outputs:
        for into, one, two in zip(static.arguments, *sources, strict=True):
            if isinstance(into, Tensor):
                torch.where(takes_other, two, one, out=into)
        return static(torch.ops.rdk)

    def copied() -> Outputs:
        rewrite(static.arguments, sources[1])
        return static(torch.ops.rdk)

    graph, outputs = captured(chosen)
    for number in (1, 0, 1, 1, 0):
        takes_other.fill_(bool(number))
        assert_equal(replayed(graph, outputs), expected[number])
    graph, outputs = captured(copied)
    rewrite(static.arguments, sources[0])
    assert_equal(replayed(graph, outputs), expected[1])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_call_is_one_launch(cuda: torch.device, workload: str) -> None:
    call = recorded(workload).on(cuda)
    graph, _ = captured(lambda: call(torch.ops.rdk), keep_graph=True)
    assert node_kinds(graph) == [KERNEL]


def node_kinds(graph: torch.cuda.CUDAGraph) -> list[int]:
    """The CUgraphNodeType of every node, as the driver tells them."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    assert driver.cuGraphGetNodes(handle, None, ctypes.byref(count)) == 0
    nodes = (ctypes.c_void_p * count.value)()
    assert driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)) == 0
    kinds = []
    for node in nodes:
        kind = ctypes.c_int()
        assert driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        kinds.append(kind.value)
    return kinds


def test_a_whole_step_captured_and_replayed_on_side_streams(cuda: torch.device) -> None:
    """step_keys, draft and verify with ordinary PyTorch between them, in one graph."""
    static = moved((calls()["verify"], calls()["draft"]), cuda)
    verify, _ = static
    keys = [verify["step_keys"].clone() + 1000 * i for i in range(5)]
    expected = []
    for values in keys:
        verify["step_keys"].copy_(values)
        expected.append(tuple(output.clone() for output in step(*static)))
    assert any(not torch.equal(tokens, expected[0][0]) for tokens, _ in expected)

    capture_stream, replay_stream = torch.cuda.Stream(cuda), torch.cuda.Stream(cuda)
    warmed_up(lambda: step(*static))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream):
        outputs = step(*static)
    torch.cuda.synchronize(cuda)
    results = []
    with torch.cuda.stream(replay_stream):
        for values in keys:  # never waiting for the host
            verify["step_keys"].copy_(values)
            results.append(replayed(graph, outputs))
    torch.cuda.synchronize(cuda)
    for actual, same in zip(results, expected, strict=True):
        assert_equal(actual, same)
