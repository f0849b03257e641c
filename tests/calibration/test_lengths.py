"""When drafts should end, found on a recording, where acceptance is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, Vocabulary, redistribute
from rdk_cuda.calibration import Samples, calibrate_length
from rdk_cuda.decoding.lengths import FEATURES, Classifier, Product, described, length_of
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.stages.lengths import Places, expected_speed, fit_classifier, places_of

from .tiny_pair import samples_of

SIZE, WIDTH = 12, 4
GENERATOR = torch.Generator().manual_seed(1)
HEAD = torch.randn(SIZE, WIDTH, generator=GENERATOR)
VOCABULARY = Vocabulary([3, 7, 1, 0, 9], SIZE)
PRUNED = replace(
    PrunedDrafter.plain((HEAD, None), VOCABULARY), dynamic_tokens=RecentTokens(VOCABULARY, 2, 4)
)


def samples(count: int, per_document: int = 40, noise: Tensor | None = None) -> Samples:
    """The target's logits are the drafter's, and noise on top."""
    generator = torch.Generator().manual_seed(2)
    hidden = 1.5 * torch.randn(count, WIDTH, generator=generator)
    noise = torch.ones(count) if noise is None else noise
    logits = hidden @ HEAD.T + noise[:, None] * torch.randn(count, SIZE, generator=generator)
    contexts = torch.randint(SIZE, (count, 5), generator=generator, dtype=torch.int32)
    return samples_of(hidden, logits, contexts, torch.arange(count) // per_document)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_drawn_tokens_are_accepted_as_often_as_the_two_distributions_agree(
    temperature: float,
) -> None:
    """The mean of min(1, p/q) over x drawn from q is the sum of min(p, q): within 5 errors."""
    own = samples(6000)
    places = places_of(own, PRUNED, (HEAD, None), temperature)
    columns = PRUNED.columns((HEAD, None), own.hidden, own.contexts)
    q = redistribute(affinity=PRUNED.affinity, temperature=temperature, **columns)
    p = torch.zeros_like(q).scatter(1, own.targets.long(), own.target_probs(temperature))
    difference = places.accepted - torch.minimum(p, q).sum(1).double()
    error = float(difference.std()) / len(own) ** 0.5
    assert abs(float(difference.mean())) < 5 * error < 0.03
    wrong = places_of(own, PRUNED, (HEAD, None), 1.7 - temperature).accepted
    assert abs(float((wrong - torch.minimum(p, q).sum(1)).mean())) > 5 * error  # the control


def test_greedy_places_are_right_or_wrong() -> None:
    own = samples(500)
    places = places_of(own, PRUNED, (HEAD, None), 0.0)
    assert set(places.accepted.tolist()) == {0.0, 1.0}


def test_the_classifier_finds_the_model_that_made_the_labels() -> None:
    features = torch.randn(20_000, FEATURES, generator=torch.Generator().manual_seed(3))
    features[:, -1] = 1
    weights = (0.5, -0.4, 0.3, -0.7, 0.2)
    accepted = (features.double() @ torch.tensor(weights, dtype=torch.float64)).sigmoid()
    zeros = torch.zeros(len(features))
    found = fit_classifier(Places(accepted, zeros, features, zeros.long()))
    assert found.weights == pytest.approx(weights, abs=0.02)
    assert found.accepted(features).double().sub(accepted).abs().max() < 0.01


def test_speed_by_hand() -> None:
    """Two documents; drafts go on behind scores that multiply to a half."""
    accepted = torch.tensor([0.5, 1.0, 0.25, 0.8, 0.4, 1.0], dtype=torch.float64)
    scores = torch.tensor([0.5, 0.9, 0.5, 0.4, 0.9, 0.9])
    documents = torch.tensor([0, 0, 0, 1, 1, 1])
    places = Places(accepted, scores, torch.zeros(6, FEATURES), documents)
    # Drafts of two from places 0, 1, 3 and 4; the one from 3 ends behind its first.
    tokens = 1 + (0.5 + 0.5 + 1.0 + 0.25 + 0.8 + 0.4 + 0.4) / 4
    assert expected_speed(places, scores, 0.5, 2, 0.2) == pytest.approx(tokens / (1 + 0.2 * 7 / 4))
    assert expected_speed(places, scores, 0.0, 1, 1.0) == pytest.approx((1 + 3.95 / 6) / 2)


@pytest.mark.parametrize("cost", [0.05, 0.3])
def test_drafts_end_early_where_some_are_much_better_than_others(cost: float) -> None:
    """Two documents of three are drafted as the target would; in the third nothing is alike."""
    noise = torch.tensor([0.0, 0.0, 6.0]).repeat_interleave(40).repeat(30)
    full = Vocabulary.identity(SIZE)
    drafter = PrunedDrafter(full, Affinity.intersection(full), HEAD)
    found = calibrate_length(
        samples(len(noise), noise=noise), drafter, (HEAD, None), 1.0, draft_cost=cost
    )
    assert found.gain >= 1
    assert (found.length is None) == (found.gain == 1)
    assert 1 <= found.draft_length <= 8
    dearer = calibrate_length(samples(3600), drafter, (HEAD, None), 1.0, draft_cost=8 * cost)
    assert dearer.draft_length <= found.draft_length


def test_what_cannot_be_calibrated_is_refused() -> None:
    for cost, count, match in ((0.0, 99, "draft_cost is 0.0"), (0.1, 15, "15 samples; needs 16")):
        with pytest.raises(ValueError, match=match):
            calibrate_length(samples(count), PRUNED, (HEAD, None), 1.0, draft_cost=cost)


@pytest.mark.parametrize(
    "description",
    [
        {"rule": "Product"},
        {"rule": "Product", "at_least": "much"},
        {"rule": "Product", "at_least": float("nan")},
        {"rule": "Drafted", "at_least": 0.5},
        {"rule": "Product", "at_least": 0.5, "gamma": 1},
        {"rule": "Classifier", "weights": [1.0, 2.0], "at_least": 0.5},
        {"rule": ["Product"], "at_least": 0.5},
        [1, 2],
    ],
)
def test_rules_are_read_as_they_were_described_and_nothing_else_is(description: object) -> None:
    for rule in (Product(0.25), Classifier((0.5, 1.0, -2.0, 0.0, 3.0), 0.4)):
        assert length_of(described(rule)) == rule
    with pytest.raises(ValueError, match="needs what `described` makes of a rule"):
        length_of(description)  # type: ignore[arg-type]
