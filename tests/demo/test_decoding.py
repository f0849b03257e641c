"""Methods are timed in turn, and give what they give all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from examples.demo import decoding
from examples.demo.arguments import Settings
from examples.demo.decoding import decode_in_turn, decoder_of
from examples.demo.reading import drafting_model, reader
from examples.demo.text import Prompt, held_out_prompts
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.methods import PRUNED, Method
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.pair.pairs import ModelPair

SETTINGS = Settings(tokens=12, seed=3)


def each(items: Sequence[Any], description: str) -> Iterator[Any]:
    yield from items


@pytest.fixture
def methods(tiny: ModelPair) -> list[Method | None]:
    vocabulary = Vocabulary.most_likely(torch.ones(tiny.vocabulary_size), 200)
    drafter = PrunedDrafter.plain(tiny.drafter_head, vocabulary)
    return [None, Method.full(tiny.drafter_head), Method(PRUNED, 0.5, drafter)]


@pytest.fixture
def prompts(tiny: ModelPair) -> list[Prompt]:
    return held_out_prompts(tiny.tokenizer)[:7]


def test_rounds_give_the_tokens_of_all_prompts_at_once(
    tiny: ModelPair, methods: list[Method | None], prompts: list[Prompt]
) -> None:
    decoded, _ = decode_in_turn(tiny, methods, prompts, SETTINGS, each)
    for method, ours in zip(methods, decoded, strict=True):
        whole = decoder_of(tiny, method, SETTINGS.draft_length).generate(
            [prompt.ids for prompt in prompts],
            max_new_tokens=SETTINGS.tokens,
            temperature=SETTINGS.temperature,
            seeds=[(SETTINGS.seed << 16) + place for place in range(len(prompts))],
        )
        assert ours.tokens == whole.tokens
        assert ours.statistics == whole.statistics
        assert [len(kinds) for kinds in ours.kinds] == [SETTINGS.tokens] * len(prompts)
        assert len(ours.speeds) == 3


def test_a_load_that_comes_and_goes_changes_no_ratio(
    tiny: ModelPair,
    methods: list[Method | None],
    prompts: list[Prompt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round is slower than the one before: all methods of a round meet the same machine."""
    turn = 0
    alone = decoding.decode

    def slow(*given: Any) -> None:
        nonlocal turn
        alone(*given)
        given[-1].seconds[-1] = len(given[2]) * 10.0 ** (turn // len(methods))
        turn += 1

    monkeypatch.setattr(decoding, "decode", slow)
    (target, *others), _ = decode_in_turn(tiny, methods, prompts, SETTINGS, each)
    assert target.speeds[0] == pytest.approx(100 * target.speeds[2])
    for one in others:
        ratios = [ours / theirs for ours, theirs in zip(one.speeds, target.speeds, strict=True)]
        assert ratios == pytest.approx([1.0] * 3)


def test_a_drafter_with_a_short_context_reads_as_it_drafts(tiny: ModelPair) -> None:
    """Each position of a text as the decoder sees it; a context of all tokens is the drafter's."""
    ids = torch.arange(60).view(2, 30)
    plain = reader(tiny)(ids)
    whole, short = (reader(replace(tiny, recent=recent))(ids) for recent in (30, 5))
    torch.testing.assert_close(whole.hidden, plain.hidden)
    assert torch.equal(short.target_logits, plain.target_logits)
    assert not torch.isclose(short.hidden[:, 6:], plain.hidden[:, 6:]).all(-1).any()
    drafter = drafting_model(replace(tiny, recent=5), head=torch.eye(8))
    drafter.reset(2)
    drafter.feed(ids[:, :20].tolist(), [1, 1])
    logits = drafter.feed(ids[:, 20:21].tolist(), [1, 1]).logits
    torch.testing.assert_close(logits[:, 0], short.hidden[:, 20])
