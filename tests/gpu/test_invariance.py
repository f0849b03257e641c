"""Bits do not depend on neighbours, slots, padding, stats given, or the strategy that a batch gets.

A batch of fewer sequences than the GPU has multiprocessors is split over blocks, one of more is
taken in order: of 1, 3 and 200 sequences the last is large on every GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests import generators
from tests.generators import Batch
from tests.operators.test_verify import verified
from tests.proof.emulated.batches import BATCHES, repeated
from tests.proof.emulated.workloads import WORKLOADS, row_limits
from tests.tolerances import assert_same_bits

from .recorded import recorded

pytestmark = pytest.mark.usefixtures("on_device")

TIMES = 50  # 200 sequences and more
AGAIN = 20


def variants(batch: Batch) -> dict[str, Batch]:
    """What may differ while every sequence decides the same."""
    slots = torch.randperm(batch.draft_logits.shape[0], generator=generators.generator(4))
    given = batch.with_stats()
    moved = {
        name: None if tensor is None else torch.empty_like(tensor).index_copy(0, slots, tensor)
        for name in ("draft_logits", "draft_stats", "dynamic_tokens", "dynamic_logits")
        for tensor in [getattr(given, name)]
    }
    padding = batch.target_logits[:9] * torch.nan
    return {
        "stats computed": batch,
        "stats given": given,
        "in slots": given.replace(**moved, draft_rows=slots.int()),
        "padded": batch.replace(target_logits=torch.cat([batch.target_logits, padding])),
    }


@pytest.mark.parametrize("variant", ["stats computed", "stats given", "in slots", "padded"])
@pytest.mark.parametrize("kind", BATCHES)
def test_verify_in_batches_below_and_above_the_number_of_multiprocessors(
    kind: str, variant: str
) -> None:
    few = BATCHES[kind]()
    tokens, num_accepted = verified(few)
    for times in (1, TIMES):
        expected = tokens.repeat(times, 1), num_accepted.repeat(times)
        assert_same_bits(verified(variants(repeated(few, times))[variant]), expected)


@pytest.mark.parametrize("kind", ["virtual", "mixed-2"])
@pytest.mark.parametrize("sequences", [1, 3, 200])
def test_verify_of_a_large_vocabulary_alone_and_among_others(sequences: int, kind: str) -> None:
    """126 chunks: alone, a sequence is split over as many blocks as there are."""
    one = generators.batch(
        generators.affinity(kind, 128256), [3], dtype=torch.bfloat16, dynamic=100
    )
    tokens, num_accepted = verified(one)
    actual = verified(repeated(one, sequences))
    assert_same_bits(actual[0], tokens.repeat(sequences, 1))
    assert_same_bits(actual[1], num_accepted.repeat(sequences))


@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("kind", ["mixed", "16 bits"])
@pytest.mark.parametrize("rows", [1, 3, 100, 200])
def test_draft_and_redistribute_of_few_and_many_rows(rows: int, kind: str, limits: bool) -> None:
    """On an H100 of 132 multiprocessors clusters of 4 blocks a row, of 2 for 100 rows, and none."""
    batch = BATCHES[kind]()
    affinity = batch.affinity
    limits_of = row_limits(8) if limits else {}

    def drafted(index: Tensor) -> tuple[Tensor, ...]:
        logits = batch.draft_logits[index]
        temperature = torch.full(index.shape, 0.9)
        dynamic = batch.dynamic_tokens[index], batch.dynamic_logits[index]
        cuts = [limit[index] for limit in limits_of.values()]
        seeds, columns = index * 31, (*affinity.by_target, affinity.row_top)
        tokens, stats = torch.ops.rdk.draft(
            logits, temperature, seeds, seeds + 2**33, *affinity.by_draft, *dynamic, *cuts
        )
        columns = (*columns, *dynamic, *cuts)
        return tokens, stats, torch.ops.rdk.redistribute(logits, temperature, *columns)

    together = drafted(torch.arange(8))
    index = torch.arange(rows) % 8
    for actual, expected in zip(drafted(index), together, strict=True):
        assert_same_bits(actual, expected[index])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_call_again_and_again(workload: str, native: Any, device: torch.device) -> None:
    """Blocks finish in another order each time."""
    call = recorded(workload).on(device)
    expected = call(native)
    for _ in range(AGAIN):
        for actual, same in zip(call(native), expected, strict=True):
            assert_same_bits(actual, same)
