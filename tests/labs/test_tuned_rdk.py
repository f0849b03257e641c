"""The covariance of the target, and the RDK samplers that are tuned on them."""

import re
from dataclasses import replace

import pytest
import torch

from rdk_cuda.affinity import Affinity
from rdk_cuda.drafter import PrunedDrafter, prune_head
from rdk_cuda.labs.tuned_rdk import (
    COVARIANCE,
    FIRST_ORDER,
    tuned_covariance,
    tuned_first_order,
    tuned_rdk,
    tuning,
)
from rdk_cuda.recipes.choose import sampled_acceptance
from rdk_cuda.recipes.stages.pruning import Pruning
from rdk_cuda.vocabulary import Vocabulary

from ..calibration import tiny_pair as tiny
from ..calibration.markov_pair import KEPT, TEMPERATURES, MarkovPair, V, material, rate
from ..calibration.tiny_pair import V_T

PAIR = MarkovPair.random()


def _covariance(samples, temperature):
    p = tiny.target_probs(samples, temperature)
    return p.T @ p / len(p) - torch.outer(p.mean(0), p.mean(0))


def _plain(vocabulary):
    head = prune_head(*tiny.full_head(), vocabulary)
    return PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), *head)


@pytest.mark.parametrize("width", [V_T, 5], ids=["all tokens recorded", "the likeliest recorded"])
@pytest.mark.parametrize("temperature", tiny.TEMPERATURES)
def test_the_rows_of_kept_tokens_are_those_of_the_dense_product(width, temperature, monkeypatch):
    monkeypatch.setattr(tuning, "_BLOCK_ROWS", 4)  # six rows are two blocks
    samples, vocabulary = tiny.samples(recorded=width), tiny.vocabulary()
    omega = tuning.target_covariance(samples, vocabulary, temperature, V_T)
    expected = _covariance(samples, temperature).clamp(min=0)
    expected[vocabulary.pruned] = 0
    torch.testing.assert_close(omega.to_dense().double(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("entries", [1, 3, 100])
def test_of_each_row_the_largest_positive_entries_stay(entries):
    samples, vocabulary = tiny.samples(30), tiny.vocabulary()
    omega = tuning.target_covariance(samples, vocabulary, 1.0, entries).to_dense()
    expected = _covariance(samples, 1.0)
    for token in vocabulary.kept:
        row, place = expected[token].sort(descending=True)
        chosen = place[: min(entries, int((row > 0).sum()))]
        assert omega[token].nonzero().flatten().tolist() == chosen.sort().values.tolist()
    assert not omega[vocabulary.pruned].any()


PRUNING = Pruning(material(PAIR), PAIR.likeliest())
TUNED = {FIRST_ORDER: r"tau \d\.\de-\d\d", COVARIANCE: r"tau \d\.\de-\d\d, keep [\d.]+"}


@pytest.mark.parametrize("name", TUNED)
def test_a_method_of_a_pruning_says_how_it_was_tuned(name):
    """Of any number of kept tokens; the similarities' is not below the pruned drafter."""
    for kept in (1, KEPT, V - 2, V):
        pruning = Pruning(PRUNING.material, PAIR.likeliest(kept))
        for temperature in TEMPERATURES:
            method = tuned_rdk(pruning, name, temperature)
            assert (method.name, method.keep) == (name, kept / V)
            assert re.fullmatch(TUNED[name], method.tuned), method.tuned
            found = rate(pruning, method.drafter, temperature)
            assert name == FIRST_ORDER or found >= rate(pruning, pruning.plain, temperature)
    for wrong, temperature, message in (
        (name, 0.9, "recorded were 1.0, 0.7"),
        (name, 0.0, "recorded were 1.0, 0.7"),
        ("cold", 1.0, "got 'cold'; needs first-order RDK or RDK, covariance"),
    ):
        with pytest.raises(ValueError, match=message):
            tuned_rdk(PRUNING, wrong, temperature)


class TestTuning:
    @pytest.mark.parametrize("temperature", tiny.TEMPERATURES)
    @pytest.mark.parametrize("kind", ["exact", "first order"])
    def test_no_tau_and_keep_of_a_fine_grid_are_much_better(self, kind, temperature):
        samples, head = tiny.samples(60), tiny.full_head()
        vocabulary = Vocabulary(tiny.vocabulary().draft_ids[:3], V_T)
        plain = _plain(vocabulary)
        omega = tuning.target_covariance(samples, vocabulary, temperature, V_T)
        mean = tiny.target_probs(samples, temperature).mean(0)
        if kind == "first order":
            tuned = tuned_first_order(samples, head, vocabulary, mean, temperature)
        else:
            tuned = tuned_covariance(samples, head, vocabulary, omega, temperature)

        def rate(tau, keep):
            if kind == "first order":
                affinity = Affinity.first_order(vocabulary, mean, tau, keep=keep)
            else:
                affinity = Affinity.covariance(vocabulary, omega, tau, keep=keep)
            drafter = replace(plain, affinity=affinity)
            return float(sampled_acceptance(samples, drafter, head, temperature).mean())

        assert rate(*tuned.label) == pytest.approx(tuned.acceptance, abs=1e-6)
        measured = sampled_acceptance(samples, tuned.drafter, head, temperature)
        assert float(measured.mean()) == pytest.approx(tuned.acceptance, abs=1e-6)
        grid = [10.0**e for e in torch.arange(-6, 1.01, 0.25).tolist()]
        rates = [rate(tau, keep) for tau in grid for keep in (0.0, 0.25, 0.5, 0.75, 1.0)]
        assert tuned.acceptance >= max(rates) - 1e-3
        # Tuning matters here: a grid that had only its worst point would be far below.
        assert min(rates) < tuned.acceptance - 0.05

    def test_what_hurts_is_switched_off(self):
        """A drafter that is the target needs no redistribution."""
        samples, everything = tiny.samples(30), Vocabulary.identity(V_T)
        weight, bias = tiny.full_head()
        own = samples.hidden @ weight.T + bias
        logits, targets = own.sort(descending=True)
        same = replace(
            samples,
            targets=targets.int(),
            target_logits=logits,
            log_normalizers=torch.stack([(own / t).logsumexp(1) for t in samples.temperatures], 1),
        )
        omega = tuning.target_covariance(same, everything, 1.0, V_T)
        tuned = tuned_covariance(same, (weight, bias), everything, omega, 1.0)
        assert tuned.acceptance == pytest.approx(1.0, abs=1e-5)

    def test_what_cannot_be_tuned_is_refused(self):
        samples, head, vocabulary = tiny.samples(30), tiny.full_head(), tiny.vocabulary()
        nothing = torch.zeros(V_T, V_T).to_sparse()
        with pytest.raises(ValueError, match="all similarities of kept tokens are 0"):
            tuned_covariance(samples, head, vocabulary, nothing, 1.0)
