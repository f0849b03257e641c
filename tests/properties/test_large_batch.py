"""200 sequences over 128,256 tokens: each has the bits that it has alone."""

from __future__ import annotations

import pytest
import torch

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda.affinity import Affinity
from tests import generators, large_vocabulary
from tests.generators import Batch
from tests.operators.test_invariance import alone, assert_same_bits

pytestmark = pytest.mark.night

CLUSTERS = 256
SEQUENCES, LENGTHS = 200, [0, 1, 2, 3, 4]
DISTINCT_ROWS = 50  # of target logits, shared among positions: they take 150 MB as it is


@pytest.fixture(scope="module")
def batch() -> Batch:
    """With virtual and dynamic tokens, drafted by the operator, half of them accepted."""
    vocabulary, mean_probs = large_vocabulary.statistics()
    clusters = torch.full((large_vocabulary.TOKENS,), -1)
    pruned = vocabulary.pruned[mean_probs[vocabulary.pruned].argsort(descending=True)]
    clusters[pruned] = torch.arange(pruned.numel()) * CLUSTERS // pruned.numel()
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)

    offsets = torch.tensor([0, *LENGTHS * (SEQUENCES // len(LENGTHS))]).cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(SEQUENCES), offsets.diff())
    drafts = sequence.numel()
    seeds = torch.arange(SEQUENCES) * 2**40 + 7
    positions = torch.arange(SEQUENCES) * 1000
    logits = generators.logits(drafts, affinity.draft_size, dtype=torch.bfloat16)
    dynamic = (
        generators.dynamic_tokens(drafts, 16, large_vocabulary.TOKENS),
        generators.logits(drafts, 16, 1, dtype=torch.bfloat16),
    )
    tokens, stats = torch.ops.rdk.draft(
        logits,
        torch.full((drafts,), 0.8),
        seeds[sequence],
        positions[sequence] + torch.arange(drafts) - offsets[sequence],
        *affinity.by_draft,
        *dynamic,
    )
    center = mean_probs.log().clamp(min=-25)
    target = (center + generators.logits(DISTINCT_ROWS, large_vocabulary.TOKENS, 2)).bfloat16()
    target = target[torch.arange(drafts + SEQUENCES) % DISTINCT_ROWS]
    favoured = torch.arange(drafts) % 4 > 0
    target[(torch.arange(drafts) + sequence)[favoured], tokens[favoured]] = 8.0
    return Batch(
        target,
        logits,
        stats,
        None,
        tokens,
        offsets.int(),
        torch.ones(SEQUENCES),
        torch.full((SEQUENCES,), 0.8),
        seeds,
        positions,
        affinity,
        max(LENGTHS),
        *dynamic,
    )


@pytest.mark.parametrize("stats", ["passed", "computed"])
def test_every_sequence_has_the_bits_that_it_has_alone(batch: Batch, stats: str) -> None:
    """Its tokens and what is accepted, and, drafted by itself, its drafts and their stats."""
    together = batch if stats == "passed" else batch.replace(draft_stats=None)
    tokens, num_accepted, _ = torch.ops.rdk.verify(*together.arguments())
    assert 0.25 < int(num_accepted.sum()) / batch.draft_token_ids.numel() < 0.75
    assert tokens.unique().numel() > SEQUENCES  # or equality would say little
    for b in range(SEQUENCES):
        own, rows = alone(together, b), slice(*batch.draft_offsets[b : b + 2].tolist())
        count = own.draft_token_ids.numel()
        drafted, own_stats = torch.ops.rdk.draft(
            own.draft_logits,
            torch.full((count,), 0.8),
            own.step_keys.expand(count).contiguous(),
            own.positions + torch.arange(count),
            *own.affinity.by_draft,
            own.dynamic_tokens,
            own.dynamic_logits,
        )
        assert_same_bits(drafted, batch.draft_token_ids[rows])
        assert_same_bits(own_stats, batch.draft_stats[rows])
        if stats == "passed":
            own.draft_stats = own_stats
        actual, accepted, _ = torch.ops.rdk.verify(*own.arguments())
        assert_same_bits(actual[0], tokens[b])
        assert_same_bits(accepted[0], num_accepted[b])
