"""A step of vLLM's runners by our functions waits for nothing, in any stream, and keeps nothing.

With vLLM, or with what `make test-vllm` has carried out of its wheel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from profiling.bench.timing import capture
from profiling.peers.carried import importable
from tests.engines.bare_step import Of, StepV2

from . import engine

pytest.importorskip("triton")
if not importable():
    pytest.skip("make test-vllm has carried nothing", allow_module_level=True)

BOTH = pytest.mark.parametrize("runner", ["v1", "v2"])
BUSY = 100_000_000  # cycles: fifty milliseconds


def of(device: torch.device, requests: int) -> Of:
    return engine.of_size(device, requests, engine.TINY)


@BOTH
@pytest.mark.parametrize("requests", [1, 64, 256])
def test_vllm_s_kernels_hand_over_and_take_what_ours_decide(
    runner: str, requests: int, cuda: torch.device
) -> None:
    tokens = getattr(engine, f"handed_over_{runner}")(of(cuda, requests))
    assert len({len(own) for own in tokens}) > (requests > 1)  # drafts are accepted and rejected


@BOTH
def test_a_step_waits_for_nothing(runner: str, cuda: torch.device) -> None:
    step = engine.ours(runner, of(cuda, 64))[1]
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(BUSY)
        busy = torch.cuda.Event()
        busy.record()
        step()
        assert not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@BOTH
def test_steps_in_streams_side_by_side_are_those_one_after_the_other(
    runner: str, cuda: torch.device
) -> None:
    expected = [own.tolist() for own in engine.ours(runner, of(cuda, 64))[1]()]
    steps = [engine.ours(runner, of(cuda, 64))[1] for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in steps]
    torch.cuda.synchronize()
    made = []
    for stream, step in zip(streams, steps, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY)
            made.append(step())
    torch.cuda.synchronize()
    assert [[own.tolist() for own in each] for each in made] == [expected] * len(steps)


def test_v2_s_drafts_are_captured_and_replayed(cuda: torch.device) -> None:
    """vLLM fills one tensor with the number of the draft, and its graph is replayed for each."""
    size = of(cuda, 64)
    step, hidden = StepV2(size), size.hidden()[0]
    expected = [step.draft(hidden, place).tolist() for place in range(size.drafts)]
    given = step.positions, step.slots, step.temperature, step.seeds, step.draft_step, None
    replay, drawn = capture(partial(step.speculator.sample_draft, hidden, *given))
    for place, tokens in enumerate(expected):
        step.draft_step.fill_(place)
        replay()
        assert drawn.tolist() == tokens


@BOTH
def test_steps_keep_no_memory(runner: str, cuda: torch.device) -> None:
    step = engine.ours(runner, of(cuda, 256))[1]
    held: list[Any] = []
    for _ in range(30):
        step()
        torch.cuda.synchronize()
        held.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    assert len(set(held[10:])) == 1
