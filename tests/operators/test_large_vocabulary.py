"""A vocabulary as large as Llama 3's, 128,256 tokens pruned to 32,768."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators, large_vocabulary
from tests.tolerances import SUM_TO_ONE, assert_as_exact_as_torch, assert_same_draws

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

CLUSTERS = 256


def virtual() -> Affinity:
    """Pruned tokens of like frequency share a virtual token."""
    vocabulary, mean_probs = large_vocabulary.statistics()
    clusters = torch.full((vocabulary.target_size,), -1)
    by_frequency = vocabulary.pruned[mean_probs[vocabulary.pruned].argsort(descending=True)]
    clusters[by_frequency] = torch.arange(by_frequency.numel()) * CLUSTERS // by_frequency.numel()
    return Affinity.virtual_tokens(vocabulary, clusters, mean_probs)


def first_order() -> Affinity:
    return Affinity.first_order(*large_vocabulary.statistics(), tau=1e-5)


def realistic_logits(affinity: Affinity, rows: int) -> Tensor:
    """Noise around the logarithm of the mean probability that each drafter token stands for."""
    mean_probs = large_vocabulary.statistics()[1].double()
    mass = torch.full((affinity.draft_size,), 1e-12, dtype=torch.float64)
    drafts = torch.arange(affinity.draft_size).repeat_interleave(affinity.row_offsets.diff())
    mass.index_add_(0, drafts, mean_probs[affinity.row_targets.long()])
    center = mass.log().float() - affinity.bias
    return (center + generators.logits(rows, affinity.draft_size, scale=1.5)).bfloat16()


@pytest.mark.parametrize("made", [virtual, first_order])
def test_operators_agree_with_the_reference(made: Callable[[], Affinity]) -> None:
    affinity, mean_probs = made(), large_vocabulary.statistics()[1]
    lengths = [3, 0, 4, 1]
    drafts, batch = sum(lengths), len(lengths)
    logits = realistic_logits(affinity, drafts)
    temperature = torch.full((drafts,), 0.8)
    given = (logits, temperature, torch.arange(drafts), torch.arange(drafts), *affinity.by_draft)
    tokens, stats = torch.ops.rdk.draft(*given)
    trace = reference.Trace()
    expected, exact_stats = reference.draft(*given, dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, expected, trace.margins(drafts))
    _, torch_stats = reference.draft(*given)
    assert_as_exact_as_torch(stats, torch_stats, exact_stats)

    columns = (logits, temperature, *affinity.by_target, affinity.row_top)
    q = torch.ops.rdk.redistribute(*columns)
    assert_as_exact_as_torch(
        q,
        reference.redistribute(*columns),
        reference.redistribute(*columns, dtype=torch.float64),
    )
    assert ((q.double().sum(1) - 1).abs() < SUM_TO_ONE).all()

    offsets = torch.tensor([0, *lengths]).cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(batch), offsets.diff())
    target = generators.logits(drafts + batch, 128256, seed=3, scale=1.0)
    target += mean_probs.log().clamp(min=-25)
    target[torch.arange(drafts) + sequence] += q.log().clamp(min=-25) / 2
    arguments = (
        target.bfloat16(),
        logits,
        stats,
        None,
        tokens,
        offsets.int(),
        torch.ones(batch),
        torch.full((batch,), 0.8),
        torch.arange(batch),
        torch.arange(batch),
        *affinity.by_target,
        max(lengths),
    )
    trace = reference.Trace()
    verified = reference.verify(*arguments, dtype=torch.float64, trace=trace)
    for actual, same in zip(torch.ops.rdk.verify(*arguments)[:2], verified[:2], strict=True):
        assert_same_draws(actual, same, trace.margins(batch))


def test_drafted_tokens_have_the_frequencies_of_q() -> None:
    """A thousand drafts: as many pruned tokens as q says, within six standard deviations."""
    draws, affinity = 1000, virtual()
    logits = realistic_logits(affinity, 1)
    ones, seeds = torch.ones(draws), torch.arange(draws)
    many = logits.expand(draws, -1)
    tokens, _ = torch.ops.rdk.draft(many, ones, seeds, torch.zeros_like(seeds), *affinity.by_draft)
    q = torch.ops.rdk.redistribute(logits, ones[:1], *affinity.by_target, affinity.row_top)[0]
    pruned = torch.ones(128256, dtype=torch.bool)
    pruned[affinity.row_targets[: affinity.row_offsets[32768]].long()] = False
    share = float(q[pruned].double().sum())
    assert 0.005 < share < 0.5
    deviation = math.sqrt(draws * share * (1 - share))
    assert abs(int(pruned[tokens].sum()) - draws * share) < 6 * deviation
