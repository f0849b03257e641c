"""A step of either model runner waits for nothing, uploads from pinned memory, and calls little.

With our functions as vLLM calls them, on tensors that are said to be on a GPU (`pretended.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from .bare_step import Of, StepV1, StepV2
from .interpreter import V2
from .pretended import GPU, OnGPU, Pretended, WaitsForDeviceError

B, K = 32, 4
# All that is called, views too. With dynamic tokens it was once V1 140, 104, 90; V2 128, 113.
MOST = {  # in a verification, in a step's first draft, and in each one after that
    (False, False): (15, 7, 4),
    (False, True): (19, 11, 6),
    (True, False): (16, 10, 10),
    (True, True): (20, 12, 12),
}


def step_of(dynamic: bool) -> Any:
    with Pretended(strict=False):
        return (StepV2 if V2 else StepV1)(Of(GPU, OnGPU, B, K, width=64 * dynamic))


def called(step: Any) -> tuple[list[int], list[Tensor]]:
    """How many calls a verification and each draft make, in the second of two steps."""
    with Pretended() as seen:
        for seed in (0, 1):
            logits, drafts = step.of.verified(seed)
            counts, drawn = [], []
            seen.names.clear()
            step.verify(logits, drafts)
            counts.append(len(seen.names))
            for place, hidden in enumerate(step.of.hidden(seed)):
                seen.names.clear()
                drawn.append(step.draft(hidden, place))
                counts.append(len(seen.names))
    return counts, drawn


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_waits_for_nothing_and_calls_little(dynamic: bool) -> None:
    (verified, first, *others), drawn = called(step_of(dynamic))
    most = MOST[V2, dynamic]
    assert verified <= most[0]
    assert first <= most[1]
    assert max(others) <= most[2]
    # A control: the tokens are real ones, not a stand-in's.
    assert all(len(own.values.unique()) > 5 for own in drawn)  # type: ignore[attr-defined]


def test_who_waits_or_uploads_from_other_memory_is_caught() -> None:
    own, host = OnGPU(torch.randn(4)), torch.ones(4)
    with Pretended() as seen:
        for wait, said in (
            (lambda: int(own[0]), "_local_scalar_dense.default waits"),
            (lambda: own[own > 0], "index.Tensor waits"),
            (lambda: torch.tensor([1, 2], device=GPU), r"uploads \[2\] from pageable memory"),
            (lambda: host.to(GPU, non_blocking=True), r"uploads \[4\] from pageable memory"),
            (lambda: own.copy_(host), r"uploads \[4\] from pageable memory"),
            (lambda: host.pin_memory().to(GPU), r"_to_copy.default of \[4\] blocks"),
            (lambda: own.to("cpu"), r"_to_copy.default of \[4\] blocks"),
        ):
            with pytest.raises(WaitsForDeviceError, match=said):
                wait()
        assert int(host[0]) == 1
        moved = host.pin_memory().to(GPU, non_blocking=True)
        assert moved.device == GPU
        assert seen.names


@pytest.mark.skipif(not V2, reason="in V1 a block drafter's drafts are drawn like others")
def test_a_block_drafter_s_drafts_are_drawn_and_kept_like_others() -> None:
    """As in DFlash, whose drafts come at once, request by request."""
    step, other = step_of(dynamic=True), step_of(dynamic=True)
    with Pretended():
        hidden = step.of.hidden()
        expected = torch.stack([step.draft(own, place) for place, own in enumerate(hidden)], 1)
        places = OnGPU(torch.arange(K, dtype=torch.int32).repeat(B))
        each = [of.repeat_interleave(K) for of in (other.positions, other.slots)]
        given = torch.stack(hidden, 1).flatten(0, 1), *each, other.temperature, other.seeds, places
        drawn = other.speculator.sample_draft(*given, None)
    assert torch.equal(drawn.values, expected.values.flatten())  # type: ignore[attr-defined]
    kept = [own.speculator.arena.rows.logits.values for own in (step, other)]
    assert torch.equal(*kept)
