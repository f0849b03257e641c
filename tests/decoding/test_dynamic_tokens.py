"""Dynamic tokens in the decoder: the hook sees the sequences, its tokens can be drafted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from table_model import TableModel, greedy, random_table
from torch import Tensor

import rdk_cuda
from rdk_cuda import (
    Affinity,
    CombinedTokens,
    RecentTokens,
    ScreenedTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.decoding import DrafterChain, DrafterTree, Output, SpeculativeDecoder
from rdk_cuda.decoding.generation import Continuation, Kind
from rdk_cuda.decoding.models import feed_unread
from rdk_cuda.dynamic_tokens import DynamicTokens

SIZE = 9
VOCABULARY = Vocabulary([0, 2, 3, 7], SIZE)
PROMPTS = [[1], [4, 4, 8], [7, 2]]
TABLE = random_table(SIZE, seed=0)


def decoder(dynamic: bool) -> SpeculativeDecoder:
    """The drafter is the target itself, but for its four-token head."""
    return SpeculativeDecoder(
        TableModel(TABLE, SIZE),
        TableModel(TABLE[:, VOCABULARY.draft_ids], SIZE),
        Affinity.intersection(VOCABULARY),
        draft_length=3,
        vocabulary=VOCABULARY,
        dynamic_tokens=every_pruned_token if dynamic else None,
        full_head=(TABLE.T.contiguous(), None) if dynamic else None,
    )


def every_pruned_token(contexts: Sequence[Sequence[int]]) -> Tensor:
    return VOCABULARY.pruned.expand(len(contexts), -1)


def test_offering_every_pruned_token_undoes_the_pruning() -> None:
    without = decoder(dynamic=False).generate(PROMPTS, max_new_tokens=60, seeds=1).statistics
    offered = decoder(dynamic=True).generate(PROMPTS, max_new_tokens=60, seeds=1).statistics
    assert without.out_of_vocabulary == 0 < without.resampled
    # Drafter and target have the same distribution now, up to rounding.
    assert offered.resampled == 0
    assert offered.out_of_vocabulary > 0


def likeliest_successors() -> SuccessorTable:
    """By the target's own probabilities after each last token, whatever precedes it."""
    counts = SuccessorCounts(SIZE)
    last, ids = torch.arange(SIZE * SIZE) % SIZE, torch.arange(SIZE)
    counts.add_probs(last, ids.expand(SIZE * SIZE, -1), TABLE.softmax(-1))
    return SuccessorTable.from_counts(counts, VOCABULARY, width=2)


def screened(width: int = 2) -> ScreenedTokens:
    """At full rank: the likeliest pruned tokens, but for ties."""
    rows = TABLE.T[VOCABULARY.pruned]
    return ScreenedTokens.from_factors(VOCABULARY, rows, torch.eye(SIZE * SIZE), width=width)


SOURCES: dict[str, DynamicTokens] = {
    "every pruned token": every_pruned_token,
    "recent tokens": RecentTokens(VOCABULARY, 4, 6),
    "successors": likeliest_successors(),
    "both": CombinedTokens(
        [RecentTokens(VOCABULARY, 4, 6), likeliest_successors()], VOCABULARY, width=4
    ),
    "screened": screened(),
    "all three": CombinedTokens(
        [RecentTokens(VOCABULARY, 1, 6), screened(), likeliest_successors()], VOCABULARY, width=4
    ),
}


def test_the_hook_sees_sequences_with_the_drafts_so_far() -> None:
    speculative, seen = decoder(dynamic=True), []

    def hook(contexts: Sequence[Sequence[int]]) -> Tensor:
        seen.append([list(context) for context in contexts])
        return torch.full((len(contexts), 2), -1)

    speculative.dynamic_tokens = hook
    speculative.generate(PROMPTS, max_new_tokens=10, seeds=1)
    assert seen[0] == PROMPTS
    for b, prompt in enumerate(PROMPTS):
        assert [len(contexts[b]) - len(prompt) for contexts in seen[:3]] == [0, 1, 2]
        assert seen[2][b][:-1] == seen[1][b]


def test_contexts_and_drafter_logits_are_not_copied_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each sequence stays one list, and all drafter logits go into the same memory."""
    speculative, verify = decoder(dynamic=True), rdk_cuda.verify
    lists: set[tuple[int, ...]] = set()
    memory: set[int] = set()

    def hook(contexts: Sequence[Sequence[int]]) -> Tensor:
        lists.add(tuple(map(id, contexts)))
        return every_pruned_token(contexts)

    def watched(logits: Tensor, draft: rdk_cuda.Draft, *rest: Any, **options: Any) -> Any:
        if draft.logits is not None:
            memory.add(draft.rows.logits.data_ptr())
        return verify(logits, draft, *rest, **options)

    speculative.dynamic_tokens = hook
    monkeypatch.setattr(rdk_cuda.functional, "verify", watched)
    speculative.generate(PROMPTS, max_new_tokens=10, seeds=1)
    assert len(lists) == len(memory) == 1


@pytest.mark.parametrize(
    "source", [RecentTokens(VOCABULARY, width=1, window=1), likeliest_successors()]
)
def test_only_tokens_that_the_source_offers_are_drafted(source: DynamicTokens) -> None:
    """Both sources depend on the last token alone: recent ones repeat it, or they follow it."""
    speculative = decoder(dynamic=True)
    speculative.dynamic_tokens = source
    offered = [set(row) for row in source([[token] for token in range(SIZE)]).tolist()]
    last = [prompt[-1] for prompt in PROMPTS]
    out_of_vocabulary = 0

    def look(b: int, new: list[int], kinds: list[Kind]) -> None:
        nonlocal out_of_vocabulary
        for token, kind in zip(new, kinds, strict=True):
            assert kind != "out_of_vocabulary" or token in offered[last[b]]
            out_of_vocabulary += kind == "out_of_vocabulary"
            last[b] = token

    speculative.generate(PROMPTS, max_new_tokens=60, seeds=1, on_tokens=look)
    assert out_of_vocabulary > 0


def test_unused_columns_change_nothing() -> None:
    speculative = decoder(dynamic=True)
    speculative.dynamic_tokens = lambda contexts: torch.full((len(contexts), 5), -1)
    plain = decoder(dynamic=False).generate(PROMPTS, max_new_tokens=40, seeds=2)
    assert speculative.generate(PROMPTS, max_new_tokens=40, seeds=2) == plain


@pytest.mark.parametrize("name", ["recent tokens", "both", "all three"])
@pytest.mark.parametrize("proposer", [DrafterChain, DrafterTree])
def test_a_source_that_reads_what_is_new_drafts_as_one_that_is_told_all(
    proposer: Any, name: str
) -> None:
    source: Any = SOURCES[name]
    drafter = TableModel(TABLE[:, VOCABULARY.draft_ids], SIZE)

    counts, decided = [40, 9, 60], list[list[int]]()

    class Stateless(CombinedTokens):
        """A type whose state nobody knows, so that it is called with whole sequences."""

        def __call__(self, contexts: Any, *, hidden: Tensor | None = None) -> Tensor:
            ends = [len(p) + count for p, count in zip(PROMPTS, counts, strict=True)]
            for context, known, end in zip(contexts, decided, ends, strict=True):
                assert context[: len(known)] == known or len(known) == end
            return super().__call__(contexts, hidden=hidden)

    def tokens(source: Any) -> list[list[int]]:
        decided[:] = [list(prompt) for prompt in PROMPTS]
        options = {"dynamic_tokens": source, "full_head": (TABLE.T.contiguous(), None)}
        own = proposer(drafter, Affinity.intersection(VOCABULARY), **options)
        decoder = SpeculativeDecoder(TableModel(TABLE, SIZE), proposer=own)

        def note(b: int, new: list[int], kinds: list[Kind]) -> None:
            decided[b].extend(new)

        given: Any = {"max_new_tokens": counts, "seeds": [5, 6, 7], "on_tokens": note}
        return decoder.generate(PROMPTS, **given).tokens

    plain = Stateless([source], VOCABULARY, source.width)
    assert tokens(source) == tokens(plain)


@pytest.mark.parametrize("proposer", [DrafterChain, DrafterTree])
def test_a_source_that_changes_its_width_within_a_step_is_refused_by_name(proposer: Any) -> None:
    def generate(widths: Iterator[int], **options: Any) -> list[list[int]]:
        drafter = TableModel(TABLE[:, VOCABULARY.draft_ids], SIZE)
        options["dynamic_tokens"] = lambda contexts: torch.tensor([[1, 4]])[:, : next(widths)]
        options["full_head"] = TABLE.T.contiguous(), None
        own = proposer(drafter, Affinity.intersection(VOCABULARY), **options)
        decoder = SpeculativeDecoder(TableModel(TABLE, SIZE), proposer=own)
        return decoder.generate([[2, 3, 2, 3]], max_new_tokens=20, temperature=0).tokens

    with pytest.raises(ValueError, match=r"(dynamic_width|dynamic_tokens ha(s|ve))"):
        generate(cycle([1, 2]))
    if proposer is DrafterChain:  # between steps it may
        tokens = generate(cycle([1, 2]), draft_length=1)
        assert tokens == [greedy(TableModel(TABLE, SIZE), [2, 3, 2, 3], 20)]


def test_a_source_for_a_decoder_that_was_made_without_any_is_refused() -> None:
    """Its logits would have no head."""
    made: Any = decoder(dynamic=False), SpeculativeDecoder(TableModel(TABLE, SIZE), draft_length=0)
    for speculative in made:
        with pytest.raises(ValueError, match="dynamic_tokens need a decoder"):
            speculative.dynamic_tokens = every_pruned_token
        speculative.dynamic_tokens = None


def test_a_drafter_without_hidden_states_is_refused() -> None:
    class Blind(TableModel):
        def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
            return Output(super().feed(tokens, keep).logits)

    speculative = decoder(dynamic=True)
    speculative.proposer.drafter = Blind(TABLE[:, VOCABULARY.draft_ids], SIZE)
    with pytest.raises(ValueError, match=r"dynamic_tokens need the drafter.s hidden states"):
        speculative.generate(PROMPTS, max_new_tokens=3)


def test_a_sequence_that_takes_another_s_place_is_asked_about_alone() -> None:
    """A rollback to 0 forgets the one before, for sources, too."""
    seen: list[list[int]] = []

    def source(contexts: Sequence[Sequence[int]]) -> Tensor:
        seen.append(list(contexts[0]))
        return every_pruned_token(contexts)

    drafter = TableModel(TABLE[:, VOCABULARY.draft_ids], SIZE)
    chain = DrafterChain(
        drafter,
        Affinity.intersection(VOCABULARY),
        dynamic_tokens=source,
        full_head=(TABLE.T.contiguous(), None),
    )
    chain.reset(1)
    for tokens in ([1, 7, 3, 8], [5, 6, 8, 2, 2], [4]):
        own = [Continuation(tokens, len(tokens), len(tokens), len(tokens) + 9, ())]
        chain.dynamic_of(own, feed_unread(drafter, own, [1]))
        chain.rollback([0])
    assert seen == [[1, 7, 3, 8], [5, 6, 8, 2, 2], [4]]
