"""The sharp pair is the mixture that it says, of the past alone, and of no held-out text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from profiling.studies.acceptance import sharp_pair
from profiling.studies.acceptance.context_models import DISCOUNT, ContextCache, NGrams
from profiling.studies.acceptance.sharp_pair import (
    SharpDrafter,
    SharpPair,
    SharpPruning,
    contexts_of,
)
from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.calibration import methods as names
from rdk_cuda.calibration.drafter import FullHead
from rdk_cuda.calibration.material import Material, Options
from rdk_cuda.calibration.recording import record
from rdk_cuda.calibration.recording.reading import Read, Reading
from rdk_cuda.calibration.recording.windows import Window
from rdk_cuda.evaluation.acceptance import measure_acceptance

SIZE, WIDTH, LENGTH = 30, 8, 40


def text(length: int, seed: int, size: int = SIZE) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = (size * torch.rand(length, generator=generator).pow(2)).long().tolist()
    return ids


DOCUMENTS = [text(300, 1), text(200, 2), [3]]
IDS = torch.tensor([text(LENGTH, 3, size=6), text(LENGTH, 4)])  # the first repeats itself


def tiny_pair() -> tuple[Read, FullHead]:
    """A pair whose state is a random function of the last token and the place."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(LENGTH, SIZE, SIZE, generator=generator)
    drafter = torch.randn(LENGTH, SIZE, WIDTH, generator=generator)
    head = torch.randn(SIZE, WIDTH, generator=generator), torch.randn(SIZE, generator=generator)

    def read(ids: Tensor) -> Reading:
        places = torch.arange(ids.shape[1])
        return Reading(target[places, ids], drafter[places, ids])

    return read, head


def ngram_probs(documents: Sequence[Sequence[int]], context: Sequence[int], order: int) -> Tensor:
    """Behind a context, straight from the formula."""
    if order == 1:
        every = [token for ids in documents for token in ids]
        counts = 1 + torch.tensor(every).bincount(minlength=SIZE).double()
        return counts / counts.sum()
    shorter = ngram_probs(documents, context, order - 1)
    wanted = list(context[len(context) - order + 1 :])
    counts = torch.zeros(SIZE, dtype=torch.float64)
    for ids in documents:
        for start in range(len(ids) - order + 1):
            if list(ids[start : start + order - 1]) == wanted:
                counts[ids[start + order - 1]] += 1
    if len(context) < order - 1 or counts.sum() == 0:
        return shorter
    left = DISCOUNT * (counts > 0).sum() / counts.sum()
    return (counts - DISCOUNT).clamp_min(0) / counts.sum() + left * shorter


def cache_probs(context: Sequence[int], cache: ContextCache) -> Tensor:
    """Behind a context, straight from the words."""
    context = context[-cache.window :]
    now = len(context) - 1
    weight = {place: cache.decay ** (now - place) for place in range(len(context))}
    probs = torch.zeros(SIZE, dtype=torch.float64)
    for place, share in weight.items():
        probs[context[place]] += share / sum(weight.values())
    for matches in range(1, cache.matches + 1):
        last = list(context[-matches:])
        followed = torch.zeros(SIZE, dtype=torch.float64)
        for place, share in weight.items():
            first = place - matches + 1
            if place < now and first >= 0 and list(context[first : place + 1]) == last:
                followed[context[place + 1]] += share
        probs = (followed + cache.trust * probs) / (followed.sum() + cache.trust)
    return probs


@pytest.mark.parametrize("order", [1, 2, 3])
def test_ngrams_are_those_of_the_formula(order: int) -> None:
    probs = NGrams(DOCUMENTS, SIZE, order).probs(contexts_of(IDS)).view(*IDS.shape, SIZE)
    torch.testing.assert_close(probs.sum(-1), torch.ones(IDS.shape))
    for row, ids in enumerate(IDS.tolist()):
        for place in (0, 1, 2, 17, LENGTH - 1):
            expected = ngram_probs(DOCUMENTS, ids[: place + 1], order)
            torch.testing.assert_close(probs[row, place].double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("matches", [0, 1, 3])
@pytest.mark.parametrize("window", [2, 5, 256])
def test_the_cache_is_what_it_says(matches: int, window: int) -> None:
    cache = ContextCache(SIZE, window, decay=0.9, matches=matches, trust=0.3)
    probs = cache.probs(contexts_of(IDS)).view(*IDS.shape, SIZE)
    torch.testing.assert_close(probs.sum(-1), torch.ones(IDS.shape))
    for row, ids in enumerate(IDS.tolist()):
        for place in range(LENGTH):
            expected = cache_probs(ids[: place + 1], cache)
            torch.testing.assert_close(probs[row, place].double(), expected, atol=1e-6, rtol=1e-5)


def test_both_of_the_pair_are_the_mixtures_of_the_first_lines() -> None:
    read, (weight, bias) = tiny_pair()
    pair = SharpPair(read, (weight, bias), DOCUMENTS)
    plain, sharp = read(IDS), pair.read_logits(IDS)
    assert torch.equal(pair.read(IDS).hidden, plain.hidden)
    logits = [plain.target_logits, torch.nn.functional.linear(plain.hidden, weight, bias)]
    for mixed, plainly, order, matches in zip(sharp, logits, (3, 2), (2, 1), strict=True):
        torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(IDS.shape))
        cache = ContextCache(SIZE, sharp_pair.WINDOW, sharp_pair.DECAY, matches, sharp_pair.TRUST)
        for place in (0, 1, 20):
            context = IDS[0, : place + 1].tolist()
            expected = (
                0.25 * plainly[0, place].double().softmax(-1)
                + 0.2 * ngram_probs(DOCUMENTS, context, order)
                + 0.55 * cache_probs(context, cache)
            )
            torch.testing.assert_close(
                mixed[0, place].double(), expected.log(), atol=1e-5, rtol=1e-5
            )


def test_nothing_later_is_looked_at() -> None:
    read = SharpPair(*tiny_pair(), DOCUMENTS).read_logits
    changed = IDS.clone()
    changed[:, 25] = (changed[:, 25] + 1) % SIZE
    for before, after in zip(read(IDS), read(changed), strict=True):
        assert torch.equal(before[:, :25], after[:, :25])
        assert not torch.equal(before[:, 26:], after[:, 26:])


def test_the_sharp_drafter_has_kept_mean_and_dynamic_columns_of_the_sharp_logits() -> None:
    read, head = tiny_pair()
    pair = SharpPair(read, head, DOCUMENTS)
    vocabulary = Vocabulary([4, 0, 7, 2], target_size=SIZE)
    affinity = Affinity.cold_mass(vocabulary, torch.ones(SIZE))
    recent = RecentTokens(vocabulary, width=9)
    weight = torch.zeros(5, WIDTH)
    sharp = SharpDrafter(vocabulary, affinity, weight, None, recent, mixture=pair.drafter)
    prefixes = [IDS[0, : place + 1].tolist() for place in range(LENGTH)]
    hidden, logits = pair.read(IDS[:1]).hidden[0], pair.read_logits(IDS[:1]).hidden[0]
    for contexts in (prefixes, contexts_of(IDS[:1])):
        found = sharp.columns(head, hidden, contexts)
        kept, mean = found["draft_logits"][:, :4], found["draft_logits"][:, 4]
        torch.testing.assert_close(kept, logits[:, [4, 0, 7, 2]])
        torch.testing.assert_close(mean, logits[:, vocabulary.pruned].mean(1))
        tokens = found["dynamic_tokens"]
        expected = logits.gather(1, tokens.long().clamp_min(0)).masked_fill(tokens < 0, -torch.inf)
        torch.testing.assert_close(found["dynamic_logits"], expected)
        assert bool((tokens >= 0).any() and (tokens < 0).any())
    weight[4] = 1.0  # a refined virtual row adds to the mean of its members
    moved = sharp.columns(head, hidden, prefixes)["draft_logits"][:, 4] - mean
    torch.testing.assert_close(moved, hidden.sum(1))


@pytest.mark.parametrize("name", [names.PRUNED, names.DYNAMIC, names.VIRTUAL, names.RECOMMENDED])
def test_methods_of_the_sharp_pair_are_built_from_its_recording(name: str) -> None:
    read, head = tiny_pair()
    pair = SharpPair(read, head, DOCUMENTS)
    windows = [Window(place, text(LENGTH, 10 + place)) for place in range(6)]
    recording = record(pair.read, windows, temperatures=(1.0,))
    vocabulary = Vocabulary.most_likely(recording.mean_probs[0], 8)
    options = Options(virtual=4, dynamic=8, samples=100)
    pruning = SharpPruning(pair.drafter, Material(recording, head), vocabulary, options)
    built, full = pruning.method(name, 1.0).drafter, pruning.full().drafter
    assert isinstance(built, SharpDrafter)
    rates = measure_acceptance(pair.read, head, {1.0: [pruning.plain, built, full]}, windows)[1.0]
    plain, found, ceiling = rates.mean((1, 2)).tolist()
    assert plain <= found + 1e-6  # on the text that it was calibrated on
    sharp = pair.read_logits(torch.tensor([window.ids for window in windows]))
    exact = torch.minimum(*(logits.softmax(-1) for logits in sharp)).sum(-1)
    assert ceiling == pytest.approx(float(exact.mean()), abs=1e-5)
