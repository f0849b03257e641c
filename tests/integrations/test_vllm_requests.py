"""What vLLM's worker knows of its requests, and that it costs no Python for each token."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rdk_cuda import CombinedTokens, RecentTokens, SuccessorTable, Vocabulary
from rdk_cuda.dynamic_tokens import recent_and_successors, window_of
from studies.vllm_bookkeeping import Running

PADDING = 999


@pytest.mark.parametrize("context", [3, 400])
def test_what_sources_offer_is_what_they_offer_for_whole_sequences(context: int) -> None:
    """To the bit, also where a window is cut at its first token, or is longer than the context."""
    vocabulary = Vocabulary(range(0, 900, 3), target_size=900)
    running = Running(64, context)
    offsets = torch.arange(901, dtype=torch.int32)
    table = SuccessorTable(offsets, torch.arange(900, dtype=torch.int32).flip(0), width=4)
    for source in (
        RecentTokens(vocabulary, width=64, window=32),
        table,
        recent_and_successors(vocabulary, table, width=48, recent=32, window=100),
        CombinedTokens([RecentTokens(vocabulary, 9, n) for n in (5, 70)], vocabulary, width=64),
    ):
        window = window_of(source)
        for drafted, contexts in enumerate(running.step(window)):
            whole = running.lists(drafted)
            assert torch.equal(source(contexts), source(whole))
            if isinstance(source, RecentTokens):
                # A control: one token less is another result.
                fewer = dataclasses.replace(contexts, window=window - 1)
                assert torch.equal(source(fewer), source(whole)) == (context < window)


def test_outputs_are_what_follows_each_prompt() -> None:
    running = Running(9, 40)
    batch = running.batch
    expected = [
        batch.token_ids_cpu[b, batch.num_prompt_tokens[b] : batch.num_tokens_no_spec[b]].tolist()
        for b in range(9)
    ]
    outputs = running.requests.outputs(PADDING)
    longest = max(map(len, expected))
    assert outputs.tolist() == [own + [PADDING] * (longest - len(own)) for own in expected]


def test_drafts_begin_behind_what_the_step_has_decided() -> None:
    requests = Running(3, 10).requests
    requests.begin_step(dict.fromkeys(requests.ids, 2), has_grammar=False)
    requests.decide(torch.tensor([[0, 5], [0, -1], [7, 0]]), torch.tensor([3, 9, 1]))
    assert requests.first().tolist() == [5, 10, 3]


def test_seeds_are_made_once_for_each_step_and_follow_the_batch() -> None:
    running = Running(5, 10)
    requests, device = running.requests, torch.device("cpu")
    requests.begin_step({}, has_grammar=False)
    first = requests.seeds(device)
    requests.begin_step({}, has_grammar=False)
    assert requests.seeds(device) is first  # and as long as the batch is the same
    running.batch.req_ids[:] = ["4", "1"]  # the same list, as vLLM's
    requests.begin_step({}, has_grammar=False)
    assert torch.equal(requests.seeds(device), first[[4, 1]])


def test_a_step_that_drafts_nothing_leaves_no_slots() -> None:
    """As when vLLM skips its drafter because the texts are too long for it."""
    running = Running(2, 10)
    running.step(1)
    running.requests.drafts = []
    assert running.requests.take_slots() == [-1, -1]


def test_a_request_that_was_preempted_has_lost_its_drafts() -> None:
    """Also where it is resumed in the next step, as when the prefix cache is reset."""
    running = Running(4, 10)
    requests = running.requests
    running.step(1)
    requests.begin_step({}, has_grammar=True, resumed={"2"})
    assert requests.take_slots() == [0, 1, -1, 3]


def test_a_request_may_have_any_seed_that_vllm_takes() -> None:
    """Up to 2^64 - 1, as `torch.Generator.manual_seed` does."""
    running = Running(3, 10)
    for b, seed in enumerate((2**63 - 1, 2**64 - 1, -5)):
        asked = SimpleNamespace(seed=seed, structured_outputs=None)
        running.requests.runner.requests[str(b)] = SimpleNamespace(sampling_params=asked)
    running.requests.begin_step({}, has_grammar=False)
    assert running.requests.seeds(torch.device("cpu")).tolist() == [2**63 - 1, -1, -5]


def calls(batch: int, context: int) -> int:
    """Of Python's and of C functions, in the second step of a batch."""
    running, count = Running(batch, context), 0
    running.step(256)

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        running.step(256)
    finally:
        sys.setprofile(None)
    return count


def test_a_longer_context_takes_no_more_calls() -> None:
    """And a larger batch few: at most five for a request, whatever the number of drafts."""
    assert calls(16, 4096) == calls(16, 64)
    assert calls(64, 512) - calls(16, 512) <= 5 * 48
