"""Ways to decode are timed in turn, and give what they give by themselves."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from examples.demo.arguments import Settings
from examples.demo.decoding import Case, Ours, Transformers, Way, choose, decode_in_turn
from examples.demo.shipped import Models
from examples.demo.text import Prompt, held_out_prompts
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.methods import PRUNED, Method
from rdk_cuda.decoding.generation import Statistics
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.pair.pairs import ModelPair

SETTINGS = Settings(tokens=12, seed=3)


def each(items: Sequence[Any], description: str) -> Iterator[Any]:
    yield from items


@pytest.fixture
def ways(tiny: ModelPair) -> list[Way]:
    models = Models(tiny, tiny.drafter)
    vocabulary = Vocabulary.most_likely(torch.ones(tiny.vocabulary_size), 200)
    full = Method.full(tiny.drafter_head)
    pruned = Method(PRUNED, 0.5, PrunedDrafter.plain(tiny.drafter_head, vocabulary))
    return [
        Ours("alone", models, {0.0: None, 1.0: None}),
        Transformers("generate", models, assisted=False),
        Transformers("assisted", models, assisted=True),
        Ours("ours", models, {0.0: full, 1.0: pruned}, (1, 4)),
    ]


@pytest.fixture
def prompts(tiny: ModelPair) -> list[Prompt]:
    return held_out_prompts(tiny.tokenizer)[:7]


@pytest.mark.parametrize("batch", [1, 2])
def test_every_way_gives_every_prompt_its_tokens_and_greedy_ones_are_the_same(
    ways: list[Way], prompts: list[Prompt], batch: int
) -> None:
    """With a batch of two the library does not assist."""
    chosen = ways if batch == 1 else [ways[0], ways[1], ways[3]]
    cases = [Case(0.0, batch), Case(1.0, batch)]
    decoded, _ = decode_in_turn(chosen, cases, prompts, SETTINGS, each)
    greedy = [one.tokens for one in decoded[cases[0]]]
    assert all(tokens == greedy[0] for tokens in greedy[1:])
    for one in (*decoded[cases[0]], *decoded[cases[1]]):
        assert [len(tokens) for tokens in one.tokens] == [SETTINGS.tokens] * len(prompts)
        assert len(one.speeds) == 4
    assert decoded[cases[1]][0].target_passes_per_token == 1.0
    assert decoded[cases[1]][1].target_passes_per_token is None


class Clocked:
    """A way that takes a time that is told."""

    def __init__(self, name: str, clock: list[float], took: list[float]) -> None:
        self.name, self.clock, self.took = name, clock, took

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        case: Case,
        seeds: list[int],
        on_tokens: Any = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        if tokens == SETTINGS.tokens:
            self.clock[0] += self.took.pop(0)
        return [[0] * tokens for _ in prompts], None


def test_a_load_that_comes_and_goes_changes_no_ratio(
    prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is slower than the one before: all ways of a round meet the same machine."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    slower = [10.0 ** (place % 4) for place in range(4)]  # one prompt each round
    chosen: list[Way] = [
        Clocked("alone", clock, [2 * one for one in slower]),
        Clocked("ours", clock, list(slower)),
    ]
    case = Case(1.0, 1)
    decoded, _ = decode_in_turn(chosen, [case], prompts[:4], SETTINGS, each)
    alone, ours = decoded[case]
    assert alone.speeds[0] == pytest.approx(1000 * alone.speeds[3])
    ratios = [a / b for a, b in zip(ours.speeds, alone.speeds, strict=True)]
    assert ratios == pytest.approx([2.0] * 4)


def test_a_batch_is_as_large_as_it_says(
    ways: list[Way], tiny: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has a batch of different prompts, whatever number of prompts is asked for."""
    sizes, alone = [], ways[0]
    assert isinstance(alone, Ours)
    decoder = alone.decoders[1.0, 0]
    plain = decoder.generate

    def counted(prompts: list[list[int]], **options: Any) -> Any:
        sizes.append(len(set(map(tuple, prompts))))
        return plain(prompts, **options)

    monkeypatch.setattr(decoder, "generate", counted)
    settings = Settings(tokens=2, prompts=3)
    decode_in_turn([alone], [Case(1.0, 5)], held_out_prompts(tiny.tokenizer), settings, each)
    assert sizes == [1, 5, 5, 5, 5]  # the first warms up


def test_the_fastest_draft_length_and_way_are_chosen_in_each_case(
    ways: list[Way], prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer drafts are tried until one is slower; the target alone may be the fastest."""
    alone, ours = ways[0], ways[3]
    assert isinstance(alone, Ours)
    assert isinstance(ours, Ours)
    ours.lengths = (1, 2, 3, 4)
    took = {0.0: {0: 3.0, 1: 2.0, 2: 1.0, 3: 2.0}, 1.0: {0: 1.0, 1: 2.0, 2: 3.0}}
    clock, tried = [0.0], []

    def call(
        way: Ours, ids: list[list[int]], tokens: int, case: Case, *_: Any
    ) -> tuple[list[list[int]], Statistics | None]:
        if tokens > 10:  # it warms up with fewer
            clock[0] += took[case.temperature][way.chosen[case]]
            tried.append((case.temperature, way.chosen[case]))
        return [[0] * tokens for _ in ids], None

    monkeypatch.setattr(Ours, "__call__", call)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    cases = [Case(0.0, 4), Case(1.0, 4)]
    chosen = choose([alone, ways[1], ours], cases, prompts, each)
    assert chosen == {cases[0]: ours, cases[1]: alone}
    assert ours.chosen == {cases[0]: 2, cases[1]: 1}
    assert tried == [(0.0, 0), (0.0, 1), (0.0, 2), (0.0, 3), (1.0, 0), (1.0, 1), (1.0, 2)]
