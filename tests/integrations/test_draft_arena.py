"""Slots keep what was drafted from, for a verification in another order, without waiting for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.sglang import verify_chain
from rdk_cuda.integrations.vllm import sample_draft
from tests import generators
from tests.operators.gloo_ranks import columns_of, start

from .engine import SLOTS, TARGET_SIZE, K, Running

AFFINITY = Affinity.intersection(Vocabulary([4, 0, 2], target_size=5))
MIXED = generators.affinity("mixed-1", TARGET_SIZE)


def test_rows_of_slots_by_hand() -> None:
    """Slots 2, none and 0 with 2, 1 and 3 drafts; and what a caller has uploaded with them."""
    arena = DraftArena(AFFINITY, slots=4, draft_length=3)
    layout = arena.layout([2, 1, 3], [2, -1, 0], [7, 8])
    assert {own.dtype for own in (*layout[:4], *layout.more)} == {torch.int32}
    assert layout.rows.tolist() == [6, 7, -1, 0, 1, 2]
    assert layout.offsets.tolist() == [0, 2, 3, 6]
    assert layout.request.tolist() == [0, 0, 1, 2, 2, 2]
    assert layout.place.tolist() == [0, 1, 0, 0, 1, 2]
    assert [own.tolist() for own in layout.more] == [[7, 8]]
    assert layout.unknown == 1


def test_what_the_arena_lacks_has_rows_that_it_lacks() -> None:
    """So `rdk::verify` rejects it by rule, and reads nothing."""
    arena = DraftArena(AFFINITY, slots=4, draft_length=2)
    rows = arena.layout([3, 2, 1], [1, 4, -2]).rows
    assert rows[:2].tolist() == [2, 3]
    assert (rows[2:] >= arena.slots * arena.draft_length).all()
    places = torch.arange(3)  # the same of tensors
    assert arena.row_of(torch.tensor([[1], [4], [-1]]), places).tolist() == [
        [2, 3, 8],
        [8, 8, 8],
        [-1, -1, -1],
    ]


def test_stats_are_kept_so_that_they_are_not_computed_again() -> None:
    running = Running()
    slot, key = running.requests[0].slot, {"seeds": [11], "positions": 18, "temperature": 0.9}
    alone = rdk_cuda.draft(running.draft_logits[:1, 0], running.affinity, **key)  # type: ignore[arg-type]
    assert torch.equal(running.arena.rows.stats[slot, 0], alone.stats[0, 0])


def decided(rank: int, ranks: int) -> list[Any]:
    """Tokens of all requests and how many were accepted, with each option; of shards if ranks."""
    running = Running(dynamic=True)
    counts = [request.drafts for request in running.requests]
    layout = running.arena.layout(counts, running.slots)
    target = running.packed(running.target_logits, more=1)
    options: list[dict[str, Any]] = [{}, {"method": "block"}, {"top_k": running.slots.clone()}]
    found = [
        running.arena.verify(
            target if ranks == 1 else columns_of(rank, ranks, target),
            running.packed(running.drafted),
            layout.offsets,
            layout.rows,
            temperature=running.temperature,
            seeds=running.seeds,
            positions=running.newest + 1,
            group=None if ranks == 1 else distributed.group.WORLD,
            **option,
        )
        for option in options
    ]
    return [[of.tokens.tolist(), of.num_accepted.tolist()] for of in found]


def test_a_group_decides_from_shards_what_one_device_decides(tmp_path: Path) -> None:
    alone = decided(0, 1)
    assert sum(alone[0][1]) > 2
    assert alone[0] not in alone[1:]
    assert start(decided, 2, tmp_path) == [alone, alone]


def test_what_does_not_fit_is_named() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    key = {"slots": one, "temperature": torch.ones(1), "seeds": one, "positions": one}
    half = DraftArena(AFFINITY, 4, 2, dtype=torch.bfloat16)
    for step in (0, torch.tensor(0)):  # rounded logits would be another distribution
        with pytest.raises(ValueError, match=r"are torch.float32; the arena keeps torch.bfloat16"):
            half.draft(torch.zeros(1, 3), step, **key)
    half.draft(torch.zeros(1, 3, dtype=torch.bfloat16), 0, **key)
    arena = DraftArena(AFFINITY, 4, 2)
    with pytest.raises(RuntimeError, match="draft_step: draft_logits has 4 columns, but needs 3"):
        arena.draft(torch.zeros(1, 4), 0, **key)  # of a drafter that the affinity is not for
    with pytest.raises(TypeError, match=r"DraftArena\.draft: step is 1\.0; needs an integer"):
        arena.draft(torch.zeros(1, 3), 1.0, **key)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="StepRows: slots is -1; needs at least 0"):
        DraftArena(AFFINITY, -1, 2)


# Nothing waits for the device.

# Tensors there have no values: who asks for one, or forgets to name the device, is refused.
META = torch.device("meta")


def test_the_adapters_ask_no_tensor_for_a_value() -> None:
    arena = DraftArena(MIXED.to(META), SLOTS, K)
    size = arena.affinity.target_size
    with META:
        slots, nodes = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 4, dtype=torch.int64)
        seeds, temperature = torch.zeros(SLOTS, dtype=torch.int64), torch.ones(SLOTS)
        logits, draft_logits = torch.ones(16, size), torch.ones(4, arena.affinity.draft_size)
    tokens = sample_draft(draft_logits, slots, slots, temperature, seeds, slots[0], arena)
    chain = verify_chain(
        logits,
        nodes,
        nodes,
        slots,
        temperature[:4, None],
        slots,
        slots,
        arena,
        req_pool_indices=slots,
    )
    assert tokens.shape == (4,)
    assert [tuple(tensor.shape) for tensor in chain] == [(16,), (4, 4), (4,)]
    assert {tensor.device for tensor in (tokens, *chain)} == {META}


def test_who_asks_for_a_value_is_caught() -> None:
    tokens = torch.zeros(4, device=META)
    with pytest.raises(RuntimeError, match="meta tensors"):
        int(tokens[0])
    with pytest.raises(NotImplementedError, match="nonzero"):
        tokens[tokens > 0]
    with pytest.raises(RuntimeError, match="not on the expected device meta"):
        tokens + torch.zeros(4)
