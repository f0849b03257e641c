"""The offset of virtual tokens, against the operators and a grid search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rdk_cuda import RecentTokens
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.choose import sampled_acceptance
from rdk_cuda.recipes.recording import Samples, at_most, held_out_rows
from rdk_cuda.recipes.stages.virtual import (
    VirtualMasses,
    calibrate_offset,
    virtual_drafter,
    with_offset,
)

from . import tiny_pair as tiny

OFF = -math.inf
HEAD = tiny.full_head()


def _drafter(samples: Samples, temperature: float = 1.0, *, dynamic: bool = False) -> PrunedDrafter:
    kept = tiny.vocabulary()
    return virtual_drafter(
        HEAD,
        kept,
        tiny.clusters(kept),
        tiny.mean_probs(samples, temperature),
        dynamic_tokens=RecentTokens(kept, 5) if dynamic else None,
    )


def _rate(samples: Samples, drafter: PrunedDrafter, temperature: float = 1.0) -> float:
    return float(sampled_acceptance(samples, drafter, HEAD, temperature).double().mean())


@pytest.mark.parametrize(("temperature", "dynamic"), [(1.0, False), (0.7, True)])
def test_acceptance_as_a_function_of_the_offset_is_that_of_the_operators(
    temperature, dynamic, monkeypatch
):
    monkeypatch.setattr("rdk_cuda.recipes.stages.virtual._BLOCK_ROWS", 7)
    samples = tiny.samples()
    drafter = _drafter(samples, temperature, dynamic=dynamic)
    known = VirtualMasses.of(samples, drafter, HEAD, temperature)
    assert bool(((known.fixed > 0) & (known.shares > 0)).any()) == dynamic
    for offset in (-3.0, -1.0, 0.0, 0.7, 4.0):
        rates = sampled_acceptance(samples, with_offset(drafter, offset), HEAD, temperature)
        ours = known.acceptance(offset).float()
        torch.testing.assert_close(ours, rates, rtol=0, atol=2e-6)
    off = replace(
        PrunedDrafter.plain(HEAD, drafter.vocabulary), dynamic_tokens=drafter.dynamic_tokens
    )
    rates = sampled_acceptance(samples, off, HEAD, temperature)
    torch.testing.assert_close(known.acceptance(OFF).float(), rates, rtol=0, atol=2e-6)
    # What was not recorded counts as one token, which gives at most what the target has there.
    few = tiny.samples(recorded=25)
    known = VirtualMasses.of(few, drafter, HEAD, temperature)
    rates = sampled_acceptance(few, drafter, HEAD, temperature)
    more = known.acceptance(0.0) - rates
    assert float(more.min()) > 0
    assert bool((more <= 1 - few.target_probs(temperature).sum(1) + 1e-6).all())


@pytest.mark.parametrize(("temperature", "dynamic"), [(1.0, False), (0.7, True)])
def test_the_offset_is_as_good_as_a_grid_search_with_the_operators(temperature, dynamic):
    samples = tiny.samples(60, documents=1)  # of which nothing is held out
    drafter = _drafter(samples, temperature, dynamic=dynamic)
    offset = calibrate_offset(samples, drafter, HEAD, temperature)
    ours = _rate(samples, with_offset(drafter, offset), temperature)
    grid = torch.linspace(-3, 3, 49).tolist()
    rates = [_rate(samples, with_offset(drafter, one), temperature) for one in grid]
    assert ours >= max(rates) - 1e-5
    assert ours > _rate(samples, drafter, temperature) + 1e-3  # it matters


def test_of_many_samples_some_are_used_from_first_to_last():
    samples = tiny.samples(60, documents=3)
    assert at_most(samples, 60) is samples
    assert torch.equal(at_most(samples, 7).hidden, samples.hidden[[0, 8, 17, 25, 34, 42, 51]])


def test_virtual_tokens_are_on_only_where_they_help_on_other_documents():
    """In the document that is held out, the target never says what they stand for."""
    kept, samples = tiny.vocabulary(), tiny.samples(60, documents=3)
    drafter = _drafter(samples)
    logits = torch.empty(len(samples), tiny.V_T)
    logits.scatter_(1, samples.targets.long(), samples.target_logits)
    (held,) = samples.documents[held_out_rows(samples.documents, 1 / 3)].unique().tolist()
    for never in ([], [held]):
        rows = torch.isin(samples.documents, torch.tensor(never))
        changed = logits.clone()
        changed[rows[:, None] & torch.isin(torch.arange(tiny.V_T), kept.pruned)] = -40.0
        given = tiny.samples_of(samples.hidden, changed, samples.contexts, samples.documents)
        assert (calibrate_offset(given, drafter, HEAD, 1.0) == OFF) == bool(never)


def test_an_offset_is_added_and_masked_rows_stay_masked():
    kept, clusters = tiny.vocabulary(), tiny.clusters(tiny.vocabulary())
    mean = tiny.mean_probs(tiny.samples()).where(clusters != 1, 0.0)
    drafter = virtual_drafter(HEAD, kept, clusters, mean)
    more = with_offset(drafter, 0.5)
    torch.testing.assert_close(
        more.affinity.bias[tiny.V_HOT :], drafter.affinity.bias[tiny.V_HOT :] + 0.5
    )
    assert more.affinity.bias[tiny.V_HOT + 1] == OFF
    assert torch.equal(more.affinity.dense(), drafter.affinity.dense())
    everything = virtual_drafter(HEAD, kept, clusters, mean.index_fill(0, kept.pruned, 0.0))
    assert calibrate_offset(tiny.samples(), everything, HEAD, 1.0) == OFF  # no better than off
