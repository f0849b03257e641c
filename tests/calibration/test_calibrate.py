"""From a recording to drafters: which tokens are kept, for which settings, and in which dtype."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import RECOMMENDED, Options, Pruning, Setting, calibrate
from rdk_cuda.recipes.stages.kept_tokens import kept_tokens

from .markov_pair import TEMPERATURES, MarkovPair, V, material

PAIR = MarkovPair.random()
DOCUMENTS = PAIR.documents()
OPTIONS = Options(virtual=4, dynamic=8, recent=4)


def test_tokens_are_kept_by_probability_or_frequency() -> None:
    recording = material(PAIR).recording.at(0.7)
    further = [*DOCUMENTS, [59] * 400]  # which the models did not read
    scores = {
        "probability": recording.mean_probs_at(0.7),
        "frequency": torch.tensor(further[:-1]).flatten().bincount(minlength=V),
    }
    scores["frequency"][59] += 400
    kept = {name: kept_tokens(recording, further, 0.25, name, always=[3]) for name in scores}
    for name, score in scores.items():
        assert kept[name] == Vocabulary.most_likely(score, 15, always=[3])
        assert 3 in kept[name].kept
    assert kept["probability"] != kept["frequency"]
    with pytest.raises(ValueError, match="keep_by is 'luck'; needs one of probability, frequency"):
        kept_tokens(recording, further, 0.25, "luck")


def test_each_setting_has_the_drafter_of_its_own_pruning() -> None:
    made = material(PAIR)
    settings = [Setting(keep, temperature) for keep in (0.25, 0.5) for temperature in TEMPERATURES]
    drafters = calibrate(made.recording, PAIR.full_head, DOCUMENTS, settings, options=OPTIONS)
    assert {one.setting for one in drafters} == set(settings)
    for one in drafters:
        keep, temperature = one.setting
        alone = material(PAIR, temperatures=(temperature,))
        vocabulary = kept_tokens(alone.recording, DOCUMENTS, keep)
        expected = Pruning(alone, vocabulary, OPTIONS).method(RECOMMENDED, temperature)
        assert one.method.tuned == expected.tuned
        assert torch.equal(one.method.drafter.weight, expected.drafter.weight)
        assert torch.equal(one.method.drafter.affinity.dense(), expected.drafter.affinity.dense())
        assert one.plain.drafter.vocabulary == vocabulary
        mean = alone.recording.mean_probs[0]
        assert one.coverage == pytest.approx(float(mean[vocabulary.kept].sum() / mean.sum()))


def test_named_tokens_are_kept_and_heads_have_numbers_of_the_dtype() -> None:
    kept, recording = Vocabulary([5, 1, 30], V), material(PAIR).recording
    (one,) = calibrate(
        recording, PAIR.full_head, DOCUMENTS, [Setting(1.0, 0.7)], kept=kept, dtype=torch.bfloat16
    )
    weight = one.method.drafter.weight
    assert one.method.drafter.vocabulary == kept
    assert weight.dtype == torch.float32
    assert torch.equal(weight.bfloat16().float(), weight)
    assert not torch.equal(PAIR.weight.bfloat16().float(), PAIR.weight)
