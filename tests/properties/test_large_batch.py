"""200 sequences over 128,256 tokens: each has the bits that it has alone.

With the file that `RDK_VOCAB_STATS` names (see tests/reference/test_real_vocabulary.py) these are
Llama 3's tokens pruned to FR-Spec's 32,768; without it, Zipf's law over as many.
"""

from __future__ import annotations

import os

import numpy
import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.generators import Batch
from tests.reference.test_invariance import alone, assert_same_bits

TOKENS, KEPT, CLUSTERS = 128256, 32768, 256
SEQUENCES, LENGTHS = 200, [0, 1, 2, 3, 4]
DISTINCT_ROWS = 50  # of target logits, shared among positions: they take 150 MB as it is


def statistics() -> tuple[Tensor, Vocabulary]:
    """Mean probabilities of all tokens, and the kept ones."""
    path = os.environ.get("RDK_VOCAB_STATS", "")
    if not os.path.exists(path):
        order = torch.randperm(TOKENS, generator=generators.generator(1))
        mean_probs = generators.zipf(TOKENS)[order].float()
        return mean_probs, Vocabulary.most_likely(mean_probs, KEPT)
    with numpy.load(path) as stats:
        ids = torch.from_numpy(stats["frspec_32768_token_ids"]).long()
        return torch.from_numpy(stats["mean_prob"]), Vocabulary(ids.sort().values, TOKENS)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """With virtual and dynamic tokens, drafted by the operator, half of them accepted."""
    mean_probs, vocabulary = statistics()
    clusters = torch.full((TOKENS,), -1)
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
        generators.dynamic_tokens(drafts, 16, TOKENS),
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
    target = (center + generators.logits(DISTINCT_ROWS, TOKENS, 2)).bfloat16()
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
    together = batch if stats == "passed" else batch.replace(draft_stats=None)
    tokens, num_accepted = torch.ops.rdk.verify(*together.arguments())
    assert 0.25 < int(num_accepted.sum()) / batch.draft_token_ids.numel() < 0.75
    assert tokens.unique().numel() > SEQUENCES  # or equality would say little
    for b in range(SEQUENCES):
        own = alone(together, b)
        if stats == "passed":
            begin, end = batch.draft_offsets[b : b + 2].tolist()
            own = own.replace(draft_stats=batch.draft_stats[begin:end])
        actual, accepted = torch.ops.rdk.verify(*own.arguments())
        assert_same_bits(actual[0], tokens[b])
        assert_same_bits(accepted[0], num_accepted[b])


def test_every_draft_has_the_bits_that_it_has_alone(batch: Batch) -> None:
    """Token and stats, each sequence drafting its positions by itself."""
    for b in range(SEQUENCES):
        own = alone(batch, b)
        count = own.draft_token_ids.numel()
        tokens, stats = torch.ops.rdk.draft(
            own.draft_logits,
            torch.full((count,), 0.8),
            own.step_keys.expand(count).contiguous(),
            own.positions + torch.arange(count),
            *own.affinity.by_draft,
            own.dynamic_tokens,
            own.dynamic_logits,
        )
        begin, end = batch.draft_offsets[b : b + 2].tolist()
        assert_same_bits(tokens, batch.draft_token_ids[begin:end])
        assert_same_bits(stats, batch.draft_stats[begin:end])
