"""The decoder's output has the target's joint distribution, whatever it drafts from.

Every test compares the counts of all continuations of a prompt with their exact probabilities
(chi-square, pooled tail). The seeds are fixed; over seeds, each `lossless` assertion would fail
falsely once in 10,000 times. Each has a negative control that must be caught at 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from table_model import (
    RejectedDrafts,
    TableModel,
    chi_square,
    continuations,
    joint,
    pruned,
    random_table,
)
from torch import Tensor

import rdk_cuda
from rdk_cuda import (
    Affinity,
    CombinedTokens,
    RecentTokens,
    ScreenedTokens,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.decoding import DrafterChain, SpeculativeDecoder
from rdk_cuda.dynamic_tokens import DynamicTokens
from rdk_cuda.functional import Method

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SIZE, LENGTH, PROMPT, SAMPLES = 6, 3, [2, 4], 12_000
FALSE_ALARM, CAUGHT = 1e-4, 1e-6
SLOW = pytest.mark.night

TARGET = TableModel(random_table(SIZE, seed=1), SIZE)
DRAFTER = 0.6 * TARGET.table + random_table(SIZE, seed=2, spread=0.8)
VOCABULARY = Vocabulary([5, 1], SIZE)
MEAN_PROBS = torch.softmax(TARGET.table, -1).mean(0)


def virtual_tokens(temperature: float = 1.0) -> Affinity:
    clusters = torch.tensor([0, -1, 0, 1, 1, -1])
    return Affinity.virtual_tokens(VOCABULARY, clusters, MEAN_PROBS, temperature=temperature)


def p_value(decoder: SpeculativeDecoder, temperature: float = 1.0) -> float:
    found = continuations(lambda: decoder, PROMPT, LENGTH, SAMPLES, temperature=temperature)
    return chi_square(found, joint(TARGET, PROMPT, LENGTH, temperature))


TO_TWO = Affinity.from_rows([{5: 0.5, 0: 0.5}, {1: 0.2, 3: 0.8}], target_size=SIZE)


@pytest.mark.parametrize(
    ("affinity", "temperature", "draft_temperature"),
    [
        (virtual_tokens(), 0.7, None),
        (virtual_tokens(), 1.3, 0.4),
        (TO_TWO, 1.0, None),
        pytest.param(virtual_tokens(), 1.0, None, marks=SLOW),
        pytest.param(virtual_tokens(), 1.0, 0.0, marks=SLOW),
        pytest.param(Affinity.intersection(VOCABULARY), 1.0, None, marks=SLOW),
        pytest.param(Affinity.first_order(VOCABULARY, MEAN_PROBS, tau=0.05), 1.0, None, marks=SLOW),
    ],
)
@pytest.mark.parametrize("method", ["token", "block"])
def test_any_affinity_is_lossless(
    affinity: Affinity, temperature: float, draft_temperature: float | None, method: Method
) -> None:
    virtual = affinity.draft_size > VOCABULARY.draft_size
    table = pruned(DRAFTER, affinity) if virtual else DRAFTER[:, VOCABULARY.draft_ids]
    decoder = SpeculativeDecoder(
        TARGET,
        TableModel(table, SIZE),
        affinity,
        draft_length=2 if virtual else 3,
        draft_temperature=draft_temperature,
        method=method,
    )
    assert p_value(decoder, temperature) > FALSE_ALARM


def test_the_target_alone_is_sampled_exactly() -> None:
    assert p_value(SpeculativeDecoder(TARGET, draft_length=0)) > FALSE_ALARM


def test_control_q_at_another_temperature_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = rdk_cuda.verify

    def wrong(logits: Tensor, draft: Any, *rest: Any, **options: Any) -> Any:
        if draft.logits is not None:
            draft = replace(draft, stats=None, temperature=draft.temperature * 1.5)
        return verify(logits, draft, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", wrong)
    affinity = virtual_tokens()
    drafter = TableModel(pruned(DRAFTER, affinity), SIZE)
    assert p_value(SpeculativeDecoder(TARGET, drafter, affinity, draft_length=2)) < CAUGHT


def p_value_fed_back() -> float:
    """Of the first two of four tokens: a position has to be drafted twice to matter."""
    table = random_table(SIZE, seed=2, spread=0.5)
    head = (table.T + 1).contiguous(), None

    def decoder() -> SpeculativeDecoder:
        return SpeculativeDecoder(
            TARGET,
            TableModel(table, SIZE),
            draft_length=3,
            dynamic_tokens=RejectedDrafts(len(PROMPT)),
            full_head=head,
        )

    found = continuations(decoder, PROMPT, 2, SAMPLES, further=2)
    return chi_square(found, joint(TARGET, PROMPT, 2))


def test_rejected_drafts_fed_back_as_dynamic_tokens_are_lossless() -> None:
    assert p_value_fed_back() > FALSE_ALARM


def test_control_without_step_keys_feeding_them_back_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rdk_cuda._ops, "step_keys", lambda seeds, positions: seeds)
    monkeypatch.setattr(DrafterChain, "_rows_for", lambda *step: None)  # keys are made in Python
    assert p_value_fed_back() < CAUGHT


class EverythingDrafted:
    """Recent tokens of all that a sequence has ever drafted or kept, rejected drafts included."""

    def __init__(self) -> None:
        self.recent = RecentTokens(VOCABULARY, width=2, window=4)
        self.histories: list[list[int]] = []
        self.lengths: list[int] = []

    def __call__(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        self.histories = self.histories or [[] for _ in contexts]
        self.lengths = self.lengths or [0 for _ in contexts]
        for b, context in enumerate(contexts):
            # After a rejection the context grows again from where it was cut.
            self.histories[b] += context[min(self.lengths[b], len(context) - 1) :]
            self.lengths[b] = len(context)
        return self.recent(self.histories)


def recent_tokens() -> DynamicTokens:
    return RecentTokens(VOCABULARY, 2, 4)


def successors() -> DynamicTokens:
    """Up to two pruned tokens after each; none after 4, with which the prompt ends."""
    offsets = torch.tensor([0, 2, 4, 5, 7, 7, 9], dtype=torch.int32)
    tokens = torch.tensor([4, 2, 3, 0, 2, 0, 3, 4, 2], dtype=torch.int32)
    return SuccessorTable(offsets, tokens, width=2)


def recent_tokens_and_successors() -> DynamicTokens:
    return CombinedTokens([recent_tokens(), successors()], VOCABULARY, width=3)


def screened(**more: int) -> ScreenedTokens:
    """The two of four pruned tokens that a screen of rank 8 finds for each of the 36 states."""
    right = torch.randn(8, SIZE * SIZE, generator=torch.Generator().manual_seed(3))
    left = DRAFTER.T[VOCABULARY.pruned] @ right.T
    return ScreenedTokens.from_factors(VOCABULARY, left, right, width=2, **more)


def screened_twice_and_recent_tokens() -> DynamicTokens:
    sources = [recent_tokens(), screened(rank=3, candidates=3)]
    return CombinedTokens(sources, VOCABULARY, width=3)


def p_value_of_dynamic_tokens(source: Callable[[], DynamicTokens], temperature: float) -> float:
    """Dynamic and virtual tokens. Of four tokens the first three count, as above."""
    affinity = virtual_tokens(temperature)

    def decoder() -> SpeculativeDecoder:
        return SpeculativeDecoder(
            TARGET,
            TableModel(pruned(DRAFTER, affinity), SIZE),
            affinity,
            draft_length=3,
            dynamic_tokens=source(),
            full_head=((DRAFTER.T + 1).contiguous(), None),
        )

    found = continuations(decoder, PROMPT, LENGTH, SAMPLES, 1, temperature=temperature)
    return chi_square(found, joint(TARGET, PROMPT, LENGTH, temperature))


@pytest.mark.parametrize(
    ("source", "temperature"),
    [
        pytest.param(recent_tokens, 1.0, marks=SLOW),
        (EverythingDrafted, 0.7),
        pytest.param(successors, 1.0, marks=SLOW),
        (recent_tokens_and_successors, 0.7),
        (screened, 1.0),
        (screened_twice_and_recent_tokens, 0.7),
    ],
)
def test_dynamic_tokens_are_lossless(
    source: Callable[[], DynamicTokens], temperature: float
) -> None:
    assert p_value_of_dynamic_tokens(source, temperature) > FALSE_ALARM


@pytest.mark.parametrize("source", [EverythingDrafted, pytest.param(successors, marks=SLOW)])
def test_control_forgetting_the_dynamic_tokens_in_verify_is_caught(
    source: Callable[[], DynamicTokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = rdk_cuda.verify

    def forgetful(logits: Tensor, draft: Any, *rest: Any, **options: Any) -> Any:
        without = replace(draft, dynamic_tokens=None, dynamic_logits=None)
        return verify(logits, without, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", forgetful)
    assert p_value_of_dynamic_tokens(source, temperature=1.0) < CAUGHT


def test_control_an_offer_that_depends_on_the_drawn_token_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the screened tokens only the one that was drawn is offered, and q is what follows."""
    draft = rdk_cuda.draft

    def peeking(*arguments: Any, **options: Any) -> Any:
        drawn = draft(*arguments, **options)
        others = drawn.dynamic_tokens != drawn.tokens[..., None]
        return replace(
            drawn, stats=None, dynamic_tokens=drawn.dynamic_tokens.masked_fill(others, -1)
        )

    monkeypatch.setattr(rdk_cuda.functional, "draft", peeking)
    assert p_value_of_dynamic_tokens(screened, temperature=1.0) < CAUGHT
