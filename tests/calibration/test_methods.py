"""Every method keeps its promises on a pair small enough to know everything about it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import Options, successor_counts
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.functional import redistribute
from rdk_cuda.recipes.stages.pruning import (
    BUILDERS,
    DYNAMIC,
    FULL,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Method,
    Pruning,
)

from .markov_pair import (
    KEPT,
    TEMPERATURES,
    MarkovPair,
    V,
    material,
    rate,
)

OPTIONS = Options(virtual=4, dynamic=8, recent=4)
ALL_TEMPERATURES = (*TEMPERATURES, 0.0)
PAIR = MarkovPair.random()
KEPT_TOKENS = PAIR.likeliest()

TUNED = {
    PRUNED: "",
    DYNAMIC: "",
    VIRTUAL: r"[0-4] of 4 virtual tokens",
    RECOMMENDED: r"off|(dynamic tokens off, )?\d of 4 virtual tokens",
}
GREEDY = "(virtual tokens )?off when greedy"


@cache
def _pruning(pair: MarkovPair, vocabulary: Vocabulary = KEPT_TOKENS) -> Pruning:
    return Pruning(material(pair), vocabulary, OPTIONS)


@cache
def _method(pruning: Pruning, name: str, temperature: float) -> Method:
    """Most tests look at the same few."""
    return pruning.method(name, temperature)


def _q(drafter: PrunedDrafter, pruning: Pruning, temperature: float) -> Tensor:
    """`[n, V]` at the samples."""
    samples = pruning.samples
    columns = drafter.columns(pruning.full_head, samples.hidden, samples.contexts)
    return redistribute(affinity=drafter.affinity, temperature=temperature, **columns)


def _rates(pruning: Pruning, temperature: float, *names: str) -> list[float]:
    return [
        rate(pruning, _method(pruning, name, temperature).drafter, temperature) for name in names
    ]


@pytest.fixture
def honest() -> Pruning:
    """A drafter that knows the target up to noise, a quarter of its tokens kept."""
    return _pruning(PAIR)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_method_says_how_it_was_tuned(honest: Pruning, name: str) -> None:
    for temperature in ALL_TEMPERATURES:
        method = _method(honest, name, temperature)
        assert (method.name, method.keep) == (name, KEPT / V)
        tuned = TUNED[name] if temperature else f"{TUNED[name]}|{GREEDY}"
        assert re.fullmatch(tuned, method.tuned), method.tuned


def test_virtual_tokens_that_only_hurt_are_said_to_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Pruning.__module__}.calibrate_offset", lambda *given: -math.inf)
    pruning = Pruning(material(PAIR), KEPT_TOKENS, OPTIONS)
    method = pruning.method(VIRTUAL, 0.7)
    assert method.tuned == "off"
    assert method.drafter is pruning.plain


def test_the_full_drafter_is_its_softmax_and_better_than_a_pruned_one(honest: Pruning) -> None:
    full = Method.full(PAIR.full_head)
    assert (full.name, full.keep, full.tuned) == (FULL, 1.0, "")
    torch.testing.assert_close(_q(full.drafter, honest, 0.7), _full_softmax(honest, 0.7))
    assert rate(honest, full.drafter, 1.0) > rate(honest, honest.plain, 1.0) + 0.1


def _full_softmax(pruning: Pruning, temperature: float) -> Tensor:
    weight, bias = pruning.full_head
    logits = torch.nn.functional.linear(pruning.samples.hidden, weight, bias)
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(1), V).float()
    return (logits / temperature).softmax(1)


REFUSED: list[tuple[Callable[[Pruning], object], str]] = [
    *(
        (partial(Pruning.method, name=name, temperature=temperature), "; recorded were 1.0, 0.7")
        for temperature in (0.9, -1.0, float("nan"))
        for name in BUILDERS
    ),
    (lambda own: own.method("cold", 1.0), "got 'cold'; needs one of pruned drafter, dynamic"),
    (lambda _: Options(virtual=0), "Options: virtual is 0; needs at least 1"),
    (lambda _: Options(dynamic=-1), "Options: dynamic is -1; needs at least 0"),
    (lambda _: Options(dynamic=0, screen=0.1), "screen is 0.1 and dynamic is 0; needs screen 0"),
    (lambda _: Options(screen=-0.1), "Options: screen is -0.1; needs a share from 0 to 1"),
    (lambda _: Options(screen=1.5), "Options: screen is 1.5; needs a share from 0 to 1"),
    (
        lambda _: Pruning(material(PAIR), Vocabulary([0, 1], V - 1)),
        "60 target tokens, the vocabulary 59 and the full head",
    ),
    (
        lambda _: Pruning(replace(material(PAIR), full_head=(PAIR.weight[:-1], None)), KEPT_TOKENS),
        "the vocabulary 60 and the full head 59 rows",
    ),
]


def test_methods_options_and_sizes_that_cannot_be_are_refused(honest: Pruning) -> None:
    for call, message in REFUSED:
        with pytest.raises(ValueError, match=re.escape(message)):
            call(honest)


def test_no_dynamic_tokens_can_be_asked_for() -> None:
    pruning = Pruning(material(PAIR), KEPT_TOKENS, replace(OPTIONS, dynamic=0))
    for name in BUILDERS:
        method = pruning.method(name, 1.0)
        assert method.drafter.dynamic_tokens is None
    own, plain = pruning.method(RECOMMENDED, 1.0).drafter, pruning.plain
    assert rate(pruning, own, 1.0) > rate(pruning, plain, 1.0)


# Where redistribution hurts.


def never_emitting(penalty: float) -> MarkovPair:
    """A target that gives pruned tokens e^-penalty of what it gave them."""
    logits = PAIR.target_logits.clone()
    logits[:, KEPT_TOKENS.pruned] -= penalty
    return replace(PAIR, target_logits=logits)


def knowing_everything() -> MarkovPair:
    """Target and full drafter are one model."""
    return replace(PAIR, target_logits=PAIR.drafter_logits)


def wrong_about_the_pruned() -> MarkovPair:
    """A drafter for which the least likely pruned tokens are the likeliest, and more than kept."""
    weight, bias = PAIR.weight.clone(), PAIR.bias.clone()
    weight[KEPT_TOKENS.pruned] *= -1
    bias[KEPT_TOKENS.pruned] = 4 - bias[KEPT_TOKENS.pruned]
    return replace(PAIR, weight=weight, bias=bias)


def misled_when_greedy() -> MarkovPair:
    """The target likes a kept token a little more than a pruned one, the drafter a little less."""
    chosen = torch.arange(V)
    kept = KEPT_TOKENS.kept[chosen % KEPT]
    pruned = KEPT_TOKENS.pruned[chosen % KEPT_TOKENS.pruned.numel()]
    logits = torch.zeros(V, V)
    logits[chosen, kept], logits[chosen, pruned] = 6.2, 6.0
    hidden = torch.zeros(V, V)  # of width V, so that any logits can be had
    hidden[chosen, kept], hidden[chosen, pruned] = 6.0, 6.2
    return MarkovPair(logits, hidden, torch.eye(V), torch.zeros(V))


ADVERSARIAL = {
    "honest": PAIR,
    "emits nothing pruned": never_emitting(30),
    "gives pruned tokens the probability 0": never_emitting(300),
    "target is drafter": knowing_everything(),
    "wrong about the pruned": wrong_about_the_pruned(),
    "misled when greedy": misled_when_greedy(),
}


@pytest.mark.parametrize("pair", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
def test_the_recommended_is_never_below_the_pruned_drafter_and_greedily_no_method_is(
    pair: MarkovPair,
) -> None:
    pruning = _pruning(pair)
    for temperature in TEMPERATURES:
        pruned, recommended = _rates(pruning, temperature, PRUNED, RECOMMENDED)
        assert recommended >= pruned, temperature
    pruned, *others = _rates(pruning, 0.0, *BUILDERS)
    assert min(others) >= pruned


def test_without_that_check_methods_do_hurt() -> None:
    """The control of the test above: dynamic tokens at T > 0 are taken as they are."""
    for name, pair in ADVERSARIAL.items():
        pruned, dynamic = _rates(_pruning(pair), 1.0, PRUNED, DYNAMIC)
        hurts = name in ("emits nothing pruned", "wrong about the pruned")
        assert (dynamic < pruned - 0.05) == hurts, name
    misled = _pruning(ADVERSARIAL["misled when greedy"])
    warm = misled.method(DYNAMIC, 0.7).drafter
    assert rate(misled, warm, 0.7) > rate(misled, misled.plain, 0.7) + 0.1
    assert rate(misled, warm, 0.0) < rate(misled, misled.plain, 0.0) - 0.5


@pytest.mark.parametrize("temperature", ALL_TEMPERATURES)
@pytest.mark.parametrize("pair", ["emits nothing pruned", "gives pruned tokens the probability 0"])
def test_the_recommended_is_off_where_the_target_emits_nothing_pruned(
    pair: str, temperature: float
) -> None:
    pruning = _pruning(ADVERSARIAL[pair])
    method = _method(pruning, RECOMMENDED, temperature)
    assert (method.drafter, method.tuned) == (pruning.plain, "off")
    q = _q(_method(pruning, VIRTUAL, temperature).drafter, pruning, temperature)
    torch.testing.assert_close(q, _q(pruning.plain, pruning, temperature))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_dynamic_tokens_that_hurt_do_not_take_virtual_ones_with_them(temperature: float) -> None:
    pruning = _pruning(ADVERSARIAL["wrong about the pruned"])
    method = _method(pruning, RECOMMENDED, temperature)
    assert method.drafter.dynamic_tokens is None
    assert method.tuned.startswith("dynamic tokens off, ")
    pruned, virtual, recommended = _rates(pruning, temperature, PRUNED, VIRTUAL, RECOMMENDED)
    assert recommended >= virtual > pruned + 0.005


def test_what_helps_is_on() -> None:
    pruning = _pruning(ADVERSARIAL["target is drafter"])
    for temperature in TEMPERATURES:
        names = PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED
        pruned, dynamic, virtual, recommended = _rates(pruning, temperature, *names)
        assert recommended > max(dynamic, virtual) > min(dynamic, virtual) > pruned + 0.05


# Unusual vocabularies.


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_where_nothing_is_pruned_nothing_is_added(temperature: float) -> None:
    pruning = _pruning(PAIR, Vocabulary.identity(V))
    for name in BUILDERS:
        method = pruning.method(name, temperature)
        assert method.keep == 1
        q = _q(method.drafter, pruning, temperature)
        torch.testing.assert_close(q, _full_softmax(pruning, temperature))


@pytest.mark.parametrize("name", BUILDERS)
def test_any_number_of_tokens_may_be_kept_and_one_document_is_enough(name: str) -> None:
    """Fewer may be pruned than `Options.virtual`; of one document nothing can be held out."""
    for kept in (1, V - 2):
        pruning = _pruning(PAIR, PAIR.likeliest(kept))
        drafter = pruning.method(name, 0.7).drafter
        if name == VIRTUAL:
            assert drafter.affinity.draft_size - kept == min(OPTIONS.virtual, V - kept)
    made = replace(material(PAIR, PAIR.documents(1, 80)), counts=None)
    pruning = Pruning(made, KEPT_TOKENS, OPTIONS)
    assert 0 < rate(pruning, pruning.method(name, 0.7).drafter, 0.7) < 1


def test_successors_are_those_of_the_text_and_of_the_target() -> None:
    """Samples without a context say nothing about them."""
    made = material(PAIR)
    samples = made.recording.samples
    samples.contexts[::3] = -1
    documents = [*PAIR.documents(4, 20, seed=33), [], [5]]
    expected = torch.zeros(V, V, dtype=torch.float64)
    for ids in documents:
        for last, following in pairwise(ids):
            expected[last, following] += 1
    for last in samples.contexts[:, -1].tolist():
        if last >= 0:
            expected[last] += PAIR.target_logits[last].softmax(0)
    counts = successor_counts(documents, made.recording)
    dense = torch.zeros(V, V, dtype=torch.float64)
    last, following, weights = counts.pairs()
    dense[last, following] = weights
    torch.testing.assert_close(dense, expected, rtol=0, atol=1e-5)
