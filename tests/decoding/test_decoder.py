"""What `SpeculativeDecoder.generate` promises besides its distribution."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from table_model import TableModel, greedy, pruned, random_table

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import NGrams, Output, SpeculativeDecoder

SIZE = 9
VOCABULARY = Vocabulary([0, 2, 3, 7], SIZE)
PROMPTS = [[1], [4, 4, 8], [7, 2], [0, 3, 5, 6, 1]]


def decoder(seed: int = 0, **options: Any) -> SpeculativeDecoder:
    """A target, and a drafter near it with four tokens of its own and two virtual ones."""
    target = random_table(SIZE, seed)
    clusters = torch.tensor([-1, 0, -1, -1, 1, 0, 1, -1, 1])
    affinity = Affinity.virtual_tokens(VOCABULARY, clusters, torch.ones(SIZE))
    near = target + random_table(SIZE, seed + 100, spread=0.7)
    return SpeculativeDecoder(
        TableModel(target, SIZE),
        TableModel(pruned(near, affinity), SIZE),
        affinity,
        **{"draft_length": 3, "vocabulary": VOCABULARY} | options,
    )


@pytest.mark.parametrize(("seed", "draft_temperature"), [(0, None), (1, None), (2, 1.0)])
def test_temperature_zero_is_greedy_decoding_of_the_target_also_with_ties(
    seed: int, draft_temperature: float | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Three different logits: most rows have their maximum several times.
    target, other = torch.randint(3, (2, SIZE * SIZE, SIZE), generator=generator).float()
    drafter = torch.where(torch.rand(target.shape, generator=generator) < 0.8, target, other)
    same = SpeculativeDecoder(
        TableModel(target, SIZE), TableModel(drafter, SIZE), draft_temperature=draft_temperature
    )
    result = same.generate(PROMPTS, max_new_tokens=20, temperature=0, seeds=seed)
    expected = [greedy(TableModel(target, SIZE), prompt, 20) for prompt in PROMPTS]
    assert result.tokens == expected
    assert sum(result.statistics.accepted) > 0
    assert result.statistics.resampled > 0


def test_what_has_ended_leaves_the_caches_of_both_models() -> None:
    made, held = decoder(), list[list[int]]()

    def look(row: int, *_: Any) -> None:
        if row == 1:
            held.append([model.lengths[0] for model in (made.target, made.drafter)])  # type: ignore[union-attr]

    made.generate(PROMPTS[:2], max_new_tokens=[1, 20], seeds=1, on_tokens=look)
    assert len(held) > 3
    assert held[1:] == [[0, 0]] * (len(held) - 1)


def test_seeds_repeat_and_are_not_shared() -> None:
    def draw(seeds: Any) -> list[list[int]]:
        return decoder().generate([[1]] * 3, max_new_tokens=20, seeds=seeds).tokens

    assert draw(5) == draw(5) != draw(6)
    assert draw([8, 9, 8])[0] == draw([8, 9, 8])[2]
    for tokens in (draw(5), draw(None)):
        assert len({tuple(sequence) for sequence in tokens}) == 3
    torch.manual_seed(1)
    first = draw(None)
    torch.manual_seed(1)
    assert draw(None) == first


def test_sequences_end_by_their_own_rules() -> None:
    free = decoder().generate(PROMPTS, max_new_tokens=40, seeds=[1, 2, 3, 4]).tokens
    limits, ends = [0, 1, 40, 40], [{3}, {3}, {free[2][7]}, {free[3][0], 5}]
    result = decoder().generate(PROMPTS, max_new_tokens=limits, seeds=[1, 2, 3, 4], eos=ends)
    assert [len(tokens) for tokens in result.tokens[:2]] == [0, 1]
    assert result.tokens[2:] == [free[2][: free[2].index(free[2][7]) + 1], free[3][:1]]
    assert result.statistics.tokens == sum(map(len, result.tokens))


@pytest.mark.parametrize(
    "eos",
    [
        *(None, 4, [4], {4, 77}, torch.tensor([4]), ({4}, {4}, [4], (4,))),
        *(np.int64(4), [np.int64(4)], np.array([4]), np.array([[4]] * 4), [np.array([4])] * 4),
    ],
    ids=repr,
)
def test_end_tokens_come_in_any_form_and_do_not_end_in_the_prompt(eos: Any) -> None:
    tokens = decoder().generate(PROMPTS, max_new_tokens=50, seeds=1, eos=eos).tokens
    assert len(tokens[1]) > 0  # its prompt has end tokens
    for sequence in tokens:
        assert len(sequence) == 50 or sequence[-1] == 4
        assert eos is None or 4 not in sequence[:-1]


def test_the_stream_is_the_result_and_its_kinds_are_the_statistics() -> None:
    prompts = PROMPTS * 5
    streamed: list[list[int]] = [[] for _ in prompts]
    kinds: list[str] = []

    def on_tokens(sequence: int, tokens: list[int], their_kinds: list[Any]) -> None:
        assert len(tokens) == len(their_kinds) > 0
        streamed[sequence] += tokens
        kinds.extend(their_kinds)
        pruned_tokens = [token not in VOCABULARY.kept.tolist() for token in tokens]
        for outside, kind in zip(pruned_tokens, their_kinds, strict=True):
            assert {"accepted": not outside, "out_of_vocabulary": outside}.get(kind, True)

    result = decoder().generate(prompts, max_new_tokens=60, seeds=3, eos=8, on_tokens=on_tokens)
    statistics = result.statistics
    assert streamed == result.tokens
    assert kinds.count("out_of_vocabulary") == statistics.out_of_vocabulary > 0
    assert kinds.count("resampled") == statistics.resampled > 0
    assert kinds.count("bonus") == statistics.bonus > 0
    accepted = kinds.count("accepted") + kinds.count("out_of_vocabulary")
    assert accepted == sum(statistics.accepted)
    assert len(kinds) == statistics.tokens == sum(map(len, result.tokens))


def test_statistics_are_consistent() -> None:
    s = decoder().generate(PROMPTS, max_new_tokens=200, seeds=4).statistics
    assert sum(s.accepted) + s.resampled + s.bonus == s.tokens == 200 * len(PROMPTS)
    # Without end tokens every pass adds one token of the target's own.
    assert s.resampled + s.bonus == s.target_passes
    # What is accepted at a place is judged at the next, unless the draft was shorter.
    assert all(later <= before for before, later in zip(s.accepted, s.drafted[1:], strict=False))
    assert sum(s.drafted) - sum(s.accepted) == s.resampled
    assert s.acceptance == [a / d for a, d in zip(s.accepted, s.drafted, strict=True)]
    assert s.mean_accepted_length == sum(s.accepted) / s.target_passes
    assert s.target_passes_per_token == s.target_passes / s.tokens
    assert s.out_of_vocabulary_share == s.out_of_vocabulary / sum(s.accepted)


def test_no_more_is_drafted_than_can_be_used() -> None:
    speculative = decoder(draft_length=5)
    s = speculative.generate([[1]], max_new_tokens=1, seeds=1).statistics
    assert sum(s.drafted) == 0
    assert s.bonus == s.target_passes == 1
    longest = 0

    class Watching(TableModel):
        def feed(self, tokens: Any, keep: Any) -> Output:
            nonlocal longest
            output = super().feed(tokens, keep)
            longest = max(longest, *self.lengths)
            return output

    speculative.target = Watching(random_table(SIZE, 0), SIZE)
    for seed in range(10):
        speculative.generate([[1, 2]], max_new_tokens=6, seeds=seed)
    assert longest == 2 + 6 - 1


def test_the_drafter_has_the_target_s_temperature_unless_told_otherwise() -> None:
    model = TableModel(random_table(SIZE, 0), SIZE)

    def resampled(draft_temperature: float | None) -> int:
        twins = SpeculativeDecoder(
            model, TableModel(model.table, SIZE), draft_temperature=draft_temperature
        )
        temperature = [0.0, 0.4, 1.0, 3.0]
        result = twins.generate(PROMPTS, max_new_tokens=50, temperature=temperature, seeds=6)
        return result.statistics.resampled

    assert resampled(None) == 0 < min(resampled(0.4), resampled(0.0), resampled(1.0))


def test_without_drafts_it_is_plain_decoding() -> None:
    model = TableModel(random_table(SIZE, 0), SIZE)
    result = SpeculativeDecoder(model, draft_length=0).generate([[1]], max_new_tokens=9, seeds=1)
    assert model.passes == result.statistics.bonus == 9
    assert math.isnan(result.statistics.mean_accepted_length) is False
    assert math.isnan(result.statistics.out_of_vocabulary_share)


def test_a_drafter_without_a_distribution_costs_drafts_only() -> None:
    target = TableModel(random_table(SIZE, 0), SIZE)
    broken = random_table(SIZE, 1)
    broken[::2] = torch.nan
    speculative = SpeculativeDecoder(target, TableModel(broken, SIZE))
    result = speculative.generate(PROMPTS, max_new_tokens=30, temperature=0)
    assert result.tokens == [greedy(target, prompt, 30) for prompt in PROMPTS]


def test_a_target_without_a_distribution_is_an_error() -> None:
    broken = torch.full((SIZE * SIZE, SIZE), torch.nan)
    speculative = SpeculativeDecoder(TableModel(broken, SIZE), draft_length=0)
    with pytest.raises(RuntimeError, match=r"logits after 2 tokens .* are no distribution"):
        speculative.generate([[1, 2]], max_new_tokens=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[1], []]}, "none of them empty"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": [torch.tensor(-2.0), 1.0]}, "temperature is -2.0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),  # it would never be reached exactly
        ({"max_new_tokens": math.nan}, "max_new_tokens is nan"),
        ({"max_new_tokens": [1, 2, 3]}, r"max_new_tokens is .* of shape \[3\]"),
        ({"seeds": [1]}, r"seeds is .* of shape \[1\]"),
        ({"top_k": -1}, "SpeculativeDecoder.generate: top_k is -1; needs to be 0 or more"),
        ({"top_p": 0.0}, "generate: top_p is 0.0; needs to be above 0 and at most 1"),
        ({"min_p": math.nan}, "generate: min_p is nan; needs to be from 0 to 1"),
        ({"top_p": [0.5]}, r"generate: top_p has shape \[1\]; needs \[2\]"),
        ({"logprobs": 5}, 'logprobs is 5; needs "processed", "raw" or None'),
        ({"eos": [{1}]}, "eos has 1 sets; needs 2"),
        ({"eos": "3"}, r"eos is \['3'\]; needs a list of token ids"),
        ({"eos": 3.0}, r"eos is \[3\.0\]; needs a list of token ids"),
        ({"eos": [{1}, None]}, r"eos\[1\] is None; needs a list of token ids"),
        (
            {"prompts": [[1], [5.9, 3.2]]},
            r"prompts\[1\] is \[5\.9, 3\.2\]; needs a list of token ids",
        ),
        ({"prompts": [5, 3]}, r"prompts\[0\] is 5; needs a list of token ids"),
        ({"prompts": ["ab", [1]]}, r"prompts\[0\] is 'ab'; needs a list of token ids"),
    ],
)
def test_bad_arguments_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"prompts": [[1], [2]], "max_new_tokens": 3}
    with pytest.raises(TypeError if "token ids" in message else ValueError, match=message):
        decoder().generate(**good | change)


def test_arrays_are_arguments_as_lists_are() -> None:
    lists: dict[str, Any] = {
        "max_new_tokens": [9, 7],
        "temperature": [0.5, 0.7],
        "top_k": [3, 4],
        "top_p": [0.9, 0.8],
        "seeds": [1, 2],
    }
    arrays = {name: np.array(values) for name, values in lists.items()}
    expected = decoder().generate([[1, 2], [3, 4]], **lists)
    result = decoder().generate(np.array([[1, 2], [3, 4]]), **arrays)
    assert result == expected
    assert {type(token) for token in result.tokens[0]} == {int}


def test_an_empty_batch_is_nothing() -> None:
    assert decoder().generate([], max_new_tokens=3).tokens == []


MODEL = TableModel(random_table(SIZE, 0), SIZE)
SMALL = TableModel(MODEL.table[:, :4], SIZE)
RECENT, HEAD = RecentTokens(VOCABULARY), (MODEL.table.T, None)
INTERSECTION = Affinity.intersection(VOCABULARY)
NO_DECODERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "drafter predicts 4 tokens, and the affinity leads from 9": ((SMALL,), {}),
    "are one object": ((MODEL,), {}),
    "draft_length is 0": ((SMALL, INTERSECTION), {"draft_length": 0}),
    "draft_length is 4": ((), {}),
    r"draft_length is 2\.5; needs an integer": ((copy(MODEL),), {"draft_length": 2.5}),
    "affinity is a Vocabulary; needs an Affinity": ((copy(MODEL), Vocabulary.identity(SIZE)), {}),
    "draft_temperature is -1": ((copy(MODEL),), {"draft_temperature": -1.0}),
    "draft_temperature is nan": ((copy(MODEL),), {"draft_temperature": math.nan}),
    "draft_temperature is inf": ((copy(MODEL),), {"draft_temperature": math.inf}),
    r"draft_temperature is \[0\.5\]; needs one number": (
        (copy(MODEL),),
        {"draft_temperature": [0.5]},
    ),
    r"draft_temperature is -2\.0; needs": (
        (copy(MODEL),),
        {"draft_temperature": torch.tensor(-2.0)},
    ),
    "draft_temperature is 'hot'; needs one number": (
        (copy(MODEL),),
        {"draft_temperature": "hot"},
    ),
    "drafter has none of its own; pass full_head=": ((copy(MODEL),), {"dynamic_tokens": RECENT}),
    "full_head has 8 rows; needs one for each of the 9": (
        (copy(MODEL),),
        {"dynamic_tokens": RECENT, "full_head": (HEAD[0][:8], None)},
    ),
    "proposer stands in the place of drafter": ((copy(MODEL),), {"proposer": NGrams()}),
}


@pytest.mark.parametrize("message", NO_DECODERS)
def test_what_does_not_go_together_is_refused(message: str) -> None:
    given, options = NO_DECODERS[message]
    with pytest.raises((ValueError, TypeError), match=message):
        SpeculativeDecoder(MODEL, *given, **options)


def test_more_tokens_than_the_target_can_read_are_refused_at_the_start() -> None:
    target = TableModel(random_table(SIZE, 0), SIZE)
    target.context = 8
    decoder = SpeculativeDecoder(target, draft_length=0)
    assert len(decoder.generate([[1, 2]], max_new_tokens=7, seeds=1).tokens[0]) == 7
    with pytest.raises(ValueError, match="take 9 tokens of the target's context of 8"):
        decoder.generate([[1, 2]], max_new_tokens=8, seeds=1)
    assert target.passes == 7


def test_a_drafter_with_a_shorter_context_drafts_while_it_can() -> None:
    drafter = TableModel(random_table(SIZE, 0), SIZE)
    drafter.context = 6
    decoder = SpeculativeDecoder(TableModel(random_table(SIZE, 0), SIZE), drafter, draft_length=3)
    tokens, statistics, _ = decoder.generate([[1, 2]], max_new_tokens=20, temperature=0.0, seeds=1)
    alone = SpeculativeDecoder(TableModel(random_table(SIZE, 0), SIZE), draft_length=0)
    assert tokens == alone.generate([[1, 2]], max_new_tokens=20, temperature=0.0).tokens
    assert sum(statistics.drafted) > 0
    assert max(drafter.lengths) <= 6
