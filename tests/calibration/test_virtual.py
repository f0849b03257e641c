"""Offsets and rows of virtual tokens, against the operators and against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rdk_cuda import RecentTokens, Vocabulary
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.choose import sampled_acceptance
from rdk_cuda.recipes.recording import Samples, held_out_rows
from rdk_cuda.recipes.stages.virtual import (
    calibrate_offsets,
    refine_virtual,
    virtual_drafter,
    with_offsets,
)
from rdk_cuda.recipes.stages.virtual_masses import virtual_masses

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
def test_acceptance_as_a_function_of_the_offsets_is_that_of_the_operators(
    temperature, dynamic, monkeypatch
):
    # In blocks of a few samples.
    monkeypatch.setattr("rdk_cuda.recipes.stages.virtual_masses._BLOCK_ENTRIES", 7 * tiny.V_T)
    samples = tiny.samples()
    drafter = _drafter(samples, temperature, dynamic=dynamic)
    known = virtual_masses(samples, drafter, HEAD, temperature)
    assert bool(known.named.samples.numel()) == dynamic
    generator = torch.Generator().manual_seed(0)
    for offsets in (
        torch.zeros(tiny.K),
        torch.full((tiny.K,), OFF),
        torch.tensor([0.3, OFF, -1.0, 0.0]),
        *torch.randn(5, tiny.K, generator=generator) * 2,
    ):
        rates = sampled_acceptance(samples, with_offsets(drafter, offsets), HEAD, temperature)
        ours = known.acceptance(known.masses(offsets)).float()
        torch.testing.assert_close(ours, rates, rtol=0, atol=2e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_long_tail_is_thinned_without_bias(temperature):
    """Of 1472 recorded targets 512 and one of 16 of the others are looked at, another each row.

    The tail has 2.4 % of the mass at T = 1. One sample's acceptance is off by up to 0.005, the
    mean of 160 by 0.0001, and over 16 rows alike the errors cancel.
    """
    size, count, clusters = 512 + 16 * 60, 160, 4
    random = torch.Generator().manual_seed(7)
    hidden, weight = (0.7 * torch.randn(n, tiny.D, generator=random) for n in (count, size))
    bias = 2 * torch.randn(size, generator=random)
    logits = hidden @ weight.T + bias + 0.7 * torch.randn(count, size, generator=random)
    contexts, documents = torch.zeros(count, 1).int(), torch.zeros(count, dtype=torch.int64)
    at = (temperature,)
    samples = tiny.samples_of(hidden, logits, contexts, documents, temperatures=at)
    mean_probs = (logits / temperature).softmax(1).mean(0).double()
    kept = Vocabulary.most_likely(mean_probs, 150)
    cluster = torch.full((size,), -1)
    cluster[kept.pruned] = torch.arange(kept.pruned.numel()) % clusters
    head = weight, bias
    named = kept.pruned[:30].int()
    drafter = virtual_drafter(
        head,
        kept,
        cluster,
        mean_probs,
        dynamic_tokens=lambda contexts: named.repeat(len(contexts), 1),
    )

    def errors(samples: Samples, offset: float) -> torch.Tensor:
        known = virtual_masses(samples, drafter, head, temperature)
        exact = with_offsets(drafter, [offset] * clusters)
        exact = sampled_acceptance(samples, exact, head, temperature).double()
        return known.acceptance(known.masses(offset)) - exact

    for offset in (OFF, -1.0, 0.0, 1.0):
        thinned = errors(samples, offset)
        assert float(thinned.abs().max()) < 0.006
        assert abs(float(thinned.mean())) < 0.0003
        alike = errors(samples.select(torch.arange(10).repeat_interleave(16)), offset).view(10, 16)
        assert float(alike.mean(1).abs().max()) < 2e-6
        # The control: single rows are not exact.
        assert float(alike.abs().amax(1).min()) > 2e-5


@pytest.mark.parametrize(("temperature", "dynamic"), [(1.0, False), (0.7, True)])
def test_offsets_are_as_good_as_a_grid_search_with_the_operators(temperature, dynamic):
    kept = tiny.vocabulary()
    clusters = tiny.clusters(kept).clamp(max=1)
    samples = tiny.samples(60)
    drafter = virtual_drafter(
        HEAD,
        kept,
        clusters,
        tiny.mean_probs(samples, temperature),
        dynamic_tokens=RecentTokens(kept, 5) if dynamic else None,
    )
    offsets = calibrate_offsets(samples, drafter, HEAD, temperature, held_out=0)
    ours = _rate(samples, with_offsets(drafter, offsets), temperature)
    grid = [OFF, *torch.linspace(-2, 2, 17).tolist()]
    rates = {
        pair: _rate(samples, with_offsets(drafter, pair), temperature)
        for pair in itertools.product(grid, grid)
    }
    assert ours >= max(rates.values()) - 1e-4
    # It matters: one offset for both, and none, are worse.
    assert ours > max(rate for (one, other), rate in rates.items() if one == other) + 1e-5
    assert ours > rates[OFF, OFF] + 0.01


def _target_that_never_says(tokens: torch.Tensor, samples: Samples) -> Samples:
    logits = torch.empty(len(samples), tiny.V_T)
    logits.scatter_(1, samples.targets.long(), samples.target_logits)
    logits[:, tokens] = -40.0
    return tiny.samples_of(samples.hidden, logits, samples.contexts, samples.documents)


@pytest.mark.parametrize("held_out", [0.0, 1 / 3])
def test_one_virtual_token_may_be_off_while_the_others_are_on(held_out):
    kept, samples = tiny.vocabulary(), tiny.samples()
    never = (tiny.clusters(kept) == 2).nonzero().flatten()
    offsets = calibrate_offsets(
        _target_that_never_says(never, samples), _drafter(samples), HEAD, 1.0, held_out=held_out
    )
    assert (offsets == OFF).tolist() == [False, False, True, False]


def test_an_offset_for_each_is_taken_only_if_it_helps_on_other_documents():
    # The target of each document avoids a cluster of its own: nothing to learn for the next one.
    kept, samples = tiny.vocabulary(), tiny.samples(12, documents=3)
    clusters = tiny.clusters(kept)
    parts = [
        _target_that_never_says(
            (clusters == document + 1).nonzero().flatten(),
            samples.select(samples.documents == document),
        )
        for document in range(3)
    ]
    fields = zip(*(vars(part).values() for part in parts), strict=True)
    joined = Samples(
        *(each[0] if isinstance(each[0], tuple) else torch.cat(each) for each in fields)
    )
    drafter = _drafter(samples)
    assert len(calibrate_offsets(joined, drafter, HEAD, 1.0, held_out=0).unique()) > 1
    assert len(calibrate_offsets(joined, drafter, HEAD, 1.0).unique()) == 1
    # Nothing can be held out of one document.
    assert len(calibrate_offsets(parts[0], drafter, HEAD, 1.0).unique()) == 1


def test_offsets_are_added_and_masked_rows_stay_masked():
    drafter = _drafter(tiny.samples())
    some = with_offsets(drafter, [0.5, OFF, 0.0, -1.0])
    again = with_offsets(some, [0.5, 3.0, 0.0, 1.0])
    base = drafter.affinity.bias[-tiny.K :]
    expected = torch.stack([base[0] + 1, torch.tensor(OFF), base[2], base[3]])
    torch.testing.assert_close(again.affinity.bias[-tiny.K :], expected)
    dense = drafter.affinity.dense()
    dense[tiny.V_HOT + 1] = 0
    assert torch.equal(again.affinity.dense(), dense)
    offsets = calibrate_offsets(tiny.samples(), some, HEAD, 1.0)
    assert with_offsets(some, offsets).affinity.bias[tiny.V_HOT + 1] == OFF
    with pytest.raises(ValueError, match=r"offsets has shape \[1\]; needs \[4\]"):
        with_offsets(drafter, [0.0])


class TestRefinement:
    @pytest.mark.parametrize(("temperature", "dynamic"), [(1.0, False), (0.7, True)])
    def test_it_finds_what_the_jensen_rows_give_away(self, temperature, dynamic):
        samples, others = tiny.samples(600, documents=30), tiny.samples(600, seed=99)
        drafter = _drafter(samples, temperature, dynamic=dynamic)
        refined = refine_virtual(samples, drafter, HEAD, temperature)
        assert _rate(others, refined, temperature) > _rate(others, drafter, temperature) + 0.002
        assert torch.equal(refined.weight[: tiny.V_HOT], drafter.weight[: tiny.V_HOT])
        assert refined.dynamic_tokens is drafter.dynamic_tokens

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_never_worse_on_the_documents_that_were_held_out(self, seed):
        samples = tiny.samples(24, noise=3.0, documents=4, seed=seed)
        drafter = _drafter(samples)
        held = samples.select(held_out_rows(samples.documents, 1 / 3))
        refined = refine_virtual(samples, drafter, HEAD, 1.0)
        assert _rate(held, refined) >= _rate(held, drafter) - 1e-6

    def test_what_cannot_be_judged_is_not_changed_and_what_is_off_stays_off(self):
        samples = tiny.samples(documents=1)
        drafter = _drafter(samples)
        assert refine_virtual(samples, drafter, HEAD, 1.0) is drafter
        samples = tiny.samples()
        drafter = with_offsets(_drafter(samples), [0.0, OFF, 0.0, 0.0])
        refined = refine_virtual(samples, drafter, HEAD, 1.0)
        assert refined is not drafter
        assert bool(refined.weight.isfinite().all())
        assert (refined.affinity.bias == OFF).nonzero().flatten().tolist() == [tiny.V_HOT + 1]
