"""Ways to decode are timed in turn, and give what they give by themselves."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from examples.demo.arguments import Settings
from examples.demo.decoding import Case, Ours, Transformers, Way, decode_in_turn
from examples.demo.shipped import Models
from examples.demo.text import Prompt, held_out_prompts
from rdk_cuda import Vocabulary
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.stages.pruning import PRUNED, Method

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


@pytest.mark.parametrize("batch", [2, pytest.param(1, marks=pytest.mark.ci)])
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
