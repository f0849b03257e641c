"""Cold mass: one extra row for all pruned tokens."""

from __future__ import annotations

import math

import pytest
import torch

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.calibration import cold_mass_drafter, prune_head, sampled_acceptance, with_offsets
from rdk_cuda.calibration.drafter import PrunedDrafter

from . import tiny_pair as tiny

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = tiny.full_head()
ROWS = ("constant", "jensen", "learned")


def _rate(samples, drafter, temperature=1.0):
    return float(sampled_acceptance(samples, drafter, HEAD, temperature).double().mean())


def _cold(samples, row, temperature=1.0, **options):
    prior = tiny.prior(samples, temperature)
    return cold_mass_drafter(
        samples,
        HEAD,
        tiny.vocabulary(),
        prior,
        temperature,
        row=row,
        prior_temperature=1.0,
        **options,
    )


def test_a_constant_row_has_the_best_constant():
    samples = tiny.samples()
    cold = _cold(samples, "constant")
    assert not bool(cold.weight[-1].any())
    assert float(cold.bias[-1]) == 0
    ours = _rate(samples, cold)
    for move in torch.linspace(-3, 3, 61).tolist():
        assert ours >= _rate(samples, with_offsets(cold, [move])) - 2e-4
    assert ours > _rate(samples, with_offsets(cold, [-math.inf])) + 0.01


def test_the_jensen_row_is_the_mean_under_the_prior():
    samples, kept = tiny.samples(), tiny.vocabulary()
    cold = _cold(samples, "jensen")
    weight, _ = prune_head(*HEAD, kept, virtual=Affinity.cold_mass(kept, tiny.prior(samples)))
    torch.testing.assert_close(cold.weight, weight)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("temperature", tiny.TEMPERATURES)
def test_rows_that_know_more_accept_more_on_other_text(temperature, dynamic):
    samples, others = tiny.samples(600, documents=30), tiny.samples(600, seed=99)
    options = {"dynamic_tokens": RecentTokens(tiny.vocabulary(), 5) if dynamic else None}
    rates = [
        _rate(others, _cold(samples, row, temperature, **options), temperature) for row in ROWS
    ]
    assert rates[0] + 0.001 < rates[1] < rates[2] - 0.0002


def test_the_prior_is_sharpened_to_the_temperature_of_use():
    samples, kept = tiny.samples(), tiny.vocabulary()
    cold = cold_mass_drafter(samples, HEAD, kept, tiny.prior(samples), 0.7)
    w = tiny.prior(samples)[kept.pruned] ** (1 / 0.7)
    torch.testing.assert_close(cold.affinity.dense()[-1, kept.pruned], w / w.sum())


def test_where_it_hurts_it_is_off_and_nothing_is_lost():
    # The drafter thinks that pruned tokens are likely, the target never says one.
    samples, kept = tiny.samples(), tiny.vocabulary()
    logits = torch.empty(len(samples), tiny.V_T)
    logits.scatter_(1, samples.targets.long(), samples.target_logits)
    logits[:, kept.pruned] = -40.0
    hostile = tiny.samples_of(samples.hidden, logits, samples.contexts, samples.documents)
    pruned = PrunedDrafter(kept, Affinity.intersection(kept), *prune_head(*HEAD, kept))
    for row in ROWS:
        cold = cold_mass_drafter(hostile, HEAD, kept, tiny.prior(samples), 1.0, row=row)
        assert _rate(hostile, cold) >= _rate(hostile, pruned) - 1e-5
        if row != "learned":
            assert cold.affinity.bias[-1] == -math.inf


def test_a_head_without_bias_stays_without():
    samples, kept = tiny.samples(), tiny.vocabulary()
    head = HEAD[0], None
    for row in ROWS:
        cold = cold_mass_drafter(samples, head, kept, tiny.prior(samples), 1.0, row=row)
        assert cold.bias is None
        assert list(cold.weight.shape) == [tiny.V_HOT + 1, tiny.D]


def test_what_is_no_cold_mass_is_refused():
    samples = tiny.samples()
    with pytest.raises(ValueError, match="row is 'warm'; needs constant, jensen or learned"):
        _cold(samples, "warm")
    everything = Vocabulary.identity(tiny.V_T)
    with pytest.raises(ValueError, match="prunes no token"):
        cold_mass_drafter(samples, HEAD, everything, tiny.prior(samples), 1.0)
    with pytest.raises(ValueError, match="recorded were"):
        cold_mass_drafter(samples, HEAD, tiny.vocabulary(), tiny.prior(samples), 0.9)
