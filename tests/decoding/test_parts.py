"""The decoder's parts: every proposer with every rule has the target's distribution.

Chi-square of three tokens against their exact probabilities; fixed seeds. Over seeds each `fits`
would fail falsely once in 10,000 times; each control is beyond 1e-6. Marked `night` are the same
tests with more samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from table_model import TableModel, greedy, pruned, random_table
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.affinity.validation import CANONICAL
from rdk_cuda.decoding import (
    DrafterChain,
    DrafterTree,
    NGrams,
    Proposal,
    Proposer,
    SpeculativeDecoder,
    Step,
)
from rdk_cuda.decoding.generation import Continuation

SIZE, LENGTH, PROMPT = 6, 3, [2, 4, 0, 2, 4]
FALSE_ALARM, CAUGHT = 1e-4, 1e-6
SAMPLES = [2_000, pytest.param(40_000, marks=pytest.mark.night)]

TARGET = TableModel(random_table(SIZE, seed=1, spread=1.0), SIZE)
DRAFTER = 0.6 * TARGET.table + random_table(SIZE, seed=2, spread=0.8)
VOCABULARY = Vocabulary([5, 1], SIZE)
AFFINITY = Affinity.virtual_tokens(
    VOCABULARY, torch.tensor([0, -1, 0, 1, 1, -1]), torch.softmax(TARGET.table, -1).mean(0)
)


def chain(cls: type[DrafterChain] = DrafterChain, **options: Any) -> DrafterChain:
    """Two kept tokens and two virtual ones."""
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    return cls(drafter, AFFINITY, **{"draft_length": 3} | options)


class FirstCopied(DrafterChain):
    """Every other sequence has a copy in place of its first draft, whatever that is."""

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        copies = torch.tensor([s.context[s.length - 2] for s in sequences])
        drawn = super().propose(sequences, step)
        if drawn.draft.logits is None:
            return drawn
        tokens = drawn.tokens.clone()
        rows = torch.arange(tokens.shape[1]).repeat(len(copies), 1)
        copied = (step.positions + step.seeds) % 2 * (tokens[:, 0] >= 0) > 0
        tokens[:, 0] = copies.where(copied, tokens[:, 0])
        rows[:, 0] = rows[:, 0].masked_fill(copied, -1)
        return drawn._replace(tokens=tokens, rows=rows)


class Dropping(DrafterChain):
    """The mistake: drops tokens that it finds unlikely, because of their own q."""

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        drawn = super().propose(sequences, step)
        unlikely = torch.isin(drawn.tokens, torch.tensor([0, 3]))
        tokens = drawn.tokens.masked_fill(unlikely, -1)
        return drawn._replace(tokens=tokens, draft=replace(drawn.draft, tokens=tokens))


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "chain": chain,
    "n-grams": lambda: NGrams(draft_length=2),
    "copies and draws": lambda: chain(FirstCopied),
}


def decoder(proposer: Proposer, method: Any = "token", target: Any = TARGET) -> SpeculativeDecoder:
    return SpeculativeDecoder(target, proposer=proposer, method=method)


def test_n_grams_copy_what_followed_the_newest_tokens_last_time() -> None:
    def proposed(tokens: list[int], room: int = 9, **options: int) -> list[int]:
        s = Continuation(tokens, len(tokens), 1, len(tokens) + room, ())
        zeros = torch.zeros(1, dtype=torch.int64)
        step = Step([room], torch.ones(1), zeros, zeros + len(tokens), {})
        found: Tensor = NGrams(**options).propose([s], step).tokens
        return found[0].tolist()

    text = [5, 1, 2, 3, 1, 2, 4, 9, 1, 2]
    assert proposed(text) == [4, 9, 1, 2]  # 1 2 occurred twice before
    assert proposed([*text, 3], draft_length=2) == [1, 2]  # 1 2 3 is longer than 3
    assert proposed(text, room=2) == [4]  # one place is the target's
    assert proposed(text, room=0) == proposed([*text, 7]) == []


def test_places_that_no_sequence_uses_change_nothing() -> None:
    class Wide(DrafterChain):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            drawn = super().propose(sequences, step)
            return drawn._replace(tokens=torch.nn.functional.pad(drawn.tokens, (0, 2), value=-1))

    found = [
        decoder(chain(cls)).generate([[1], [2]], max_new_tokens=[9, 4], seeds=1)
        for cls in (DrafterChain, Wide)
    ]
    assert found[0] == found[1]


def test_more_than_there_is_room_for_is_refused() -> None:
    class Long(Proposer):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            return Proposal.fixed([[1] * 5], step._replace(room=[9]))

    with pytest.raises(ValueError, match=r"5 tokens are proposed after sequence 0, .* for 3"):
        decoder(Long()).generate([[1]], max_new_tokens=3)


def test_drafts_are_judged_by_the_affinity_that_they_were_drawn_with() -> None:
    """An equal one may be given, too; where nothing is drawn, any."""
    equal = Affinity(*(getattr(AFFINITY, name) for name in CANONICAL))
    SpeculativeDecoder(TARGET, affinity=equal, proposer=chain())
    other = Affinity.virtual_tokens(
        VOCABULARY, torch.tensor([0, -1, 1, 1, 1, -1]), torch.softmax(TARGET.table, -1).mean(0)
    )
    SpeculativeDecoder(TARGET, affinity=other, proposer=NGrams())
    with pytest.raises(ValueError, match=r"the proposer draws with another, .*; leave it out"):
        SpeculativeDecoder(TARGET, affinity=other, proposer=chain())


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("kind", [DrafterChain, DrafterTree])
def test_a_drafter_of_another_size_than_its_affinity_is_refused(kind: Any, size: int) -> None:
    drafter = TableModel(TARGET.table[:, :size], SIZE)
    with pytest.raises(ValueError, match=rf"drafter predicts {size} tokens, .* leads from 4"):
        kind(drafter, AFFINITY)


@pytest.mark.parametrize("foreign", [SIZE, 2**40, -3])
@pytest.mark.parametrize("parents", [None, [-1, 0, 1, -1]])
def test_a_token_that_the_target_does_not_predict_is_neither_read_nor_accepted(
    parents: list[int] | None, foreign: int
) -> None:
    """Nor is what follows it. The greedy text behind it is the target's own."""

    class Foreign(Proposer):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            tokens = [[*greedy(TARGET, sequences[0].tokens, 1), foreign, 2, 3]]
            if parents is None:
                return Proposal.fixed(tokens, step)
            return Proposal.tree(torch.tensor(tokens), torch.tensor([parents]), step)

    found = decoder(Foreign()).generate([[1]], max_new_tokens=20, temperature=0)
    assert found.tokens == [greedy(TARGET, [1], 20)]
    assert sum(found.statistics.accepted) == 10


def test_rows_that_are_not_the_draft_s_own_are_rejected() -> None:
    """As DESIGN section 4 has it: a row outside of [-1, M), and never another sequence's."""

    class Beyond(DrafterChain):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            drawn = super().propose(sequences, step)
            return drawn._replace(rows=torch.full_like(drawn.tokens, drawn.tokens.shape[1]))

    generated = decoder(chain(Beyond)).generate([[1], [2]], max_new_tokens=9, seeds=1)
    assert sum(generated.statistics.accepted) == 0 < generated.statistics.resampled


def test_a_proposer_of_its_own_may_draft_into_rows_and_propose_fewer() -> None:
    """Where a sequence has no room for all places, the last ones are not proposed."""

    class Own(DrafterChain):
        rows: rdk_cuda.StepRows | None = None

        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            logits = torch.zeros(len(sequences), AFFINITY.draft_size)
            link: dict[str, Any] = {"seeds": step.seeds, "positions": step.positions}
            drafts = [rdk_cuda.draft(logits, AFFINITY, **link, rows=self.rows)]
            for _ in range(3):
                drafts.append(rdk_cuda.draft(logits, AFFINITY, after=drafts[-1]))
            return Proposal.drawn(rdk_cuda.Draft.join(drafts), step)

    def tokens(rows: rdk_cuda.StepRows | None) -> list[list[int]]:
        own = chain(Own)
        own.rows = rows
        decoder = SpeculativeDecoder(TARGET, affinity=AFFINITY, proposer=own)
        return decoder.generate([PROMPT, PROMPT], max_new_tokens=[6, 3], seeds=3).tokens

    assert tokens(rdk_cuda.StepRows(AFFINITY, slots=2, places=4)) == tokens(None)


def test_a_proposer_may_write_other_tokens_over_those_that_were_drawn() -> None:
    """The target reads what is proposed, also where the tensor is the one that was drawn into."""
    plain = SpeculativeDecoder(TARGET, affinity=AFFINITY, proposer=chain())
    expected = plain.generate([PROMPT, PROMPT[1:]], max_new_tokens=12, temperature=0.0).tokens

    class Corrected(DrafterChain):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            proposal = super().propose(sequences, step)
            for b, s in enumerate(sequences):
                whole = (PROMPT, PROMPT[1:])[b] + expected[b]
                right = whole[s.length :][: proposal.tokens.shape[1]]
                proposal.tokens[b, : len(right)] = torch.tensor(right)
            return proposal

    wrong = TableModel(pruned(-TARGET.table, AFFINITY), SIZE)
    own = Corrected(wrong, AFFINITY, draft_length=3)
    decoder = SpeculativeDecoder(TARGET, affinity=AFFINITY, proposer=own)
    found = decoder.generate([PROMPT, PROMPT[1:]], max_new_tokens=12, temperature=0.0)
    assert found.tokens == expected
    assert found.statistics.resampled == 0


def test_a_draft_that_has_ended_does_not_go_on_while_others_do() -> None:
    """A row without a distribution ends its sequence's draft, whatever is drawn behind it."""

    class Half(TableModel):
        def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int], *of: Any) -> Any:
            output = super().feed(tokens, keep, *of)
            output.logits[1] = torch.nan if keep[1] else 0.0  # a row that is not kept is any
            return output

    proposed: list[list[list[int]]] = []

    class Seen(DrafterChain):
        def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
            proposal = super().propose(sequences, step)
            proposed.append(proposal.tokens.tolist())
            return proposal

    own = Seen(Half(pruned(DRAFTER, AFFINITY), SIZE), AFFINITY, draft_length=3)
    decoder = SpeculativeDecoder(TARGET, affinity=AFFINITY, proposer=own)
    decoder.generate([PROMPT, PROMPT[1:]], max_new_tokens=6, temperature=1.0, seeds=5)
    assert any(len(first) > 1 for first, _ in proposed)
    assert {token for _, second in proposed for token in second} == {-1}
