"""Cascades: drafters that are decoded speculatively themselves draft what they draft alone.

Chi-square of three tokens against their exact probabilities; fixed seeds. Over seeds each `fits`
would fail falsely once in 10,000 times; each control is beyond 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import test_dynamic_tokens
import test_every_proposer
import test_huggingface
import test_parts
import torch
from lossless import CONDITIONS, p_value
from table_model import TableModel, greedy, pruned, random_table
from test_exact_match import LastToken, bigrams, prompts, target
from test_exact_match import drafter as text_drafter
from test_parts import AFFINITY, CAUGHT, DRAFTER, FALSE_ALARM, TARGET, VOCABULARY, decoder
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import (
    DrafterChain,
    DrafterTree,
    ExactMatch,
    NGrams,
    Output,
    Proposal,
    Proposer,
    SpeculativeDecoder,
    Step,
)
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.rules import Decided, Verification
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.cascades import Cascade
from tests.trained_tokenizers import TOKENIZERS

AS_IT_IS = CONDITIONS["as it is"]

SIZE = TARGET.size
HEAD = ((DRAFTER.T + 1).contiguous(), None)
SMALLER = Affinity.intersection(Vocabulary([0, 3, 4], SIZE))
WHOLE = Affinity.intersection(Vocabulary.identity(SIZE))
SMALL = 0.6 * DRAFTER + random_table(SIZE, seed=3, spread=0.8)


def small() -> DrafterChain:
    """Three tokens of six, none of which the middle drafter keeps."""
    return DrafterChain(TableModel(SMALL[:, [0, 3, 4]], SIZE), SMALLER, draft_length=2)


def cascade(inner: Proposer, **options: Any) -> Cascade:
    """The middle drafter: two kept tokens and two virtual ones."""
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    return Cascade(inner, drafter, AFFINITY, **{"draft_length": 3} | options)


def three_stages() -> Cascade:
    """N-grams draft for the smallest, which drafts for the one in the middle."""
    smallest = Cascade(
        NGrams(), TableModel(SMALL[:, [0, 3, 4]], SIZE), SMALLER, draft_length=2, method="block"
    )
    return cascade(smallest)


CASCADES: dict[str, Callable[[], Cascade]] = {
    "n-grams": lambda: cascade(NGrams(draft_length=2)),
    "a smaller drafter": lambda: cascade(small()),
    "three stages": three_stages,
    "dynamic tokens": lambda: cascade(
        small(), dynamic_tokens=RecentTokens(VOCABULARY, 2, 4), full_head=HEAD
    ),
    "a tree": lambda: cascade(DrafterTree(TableModel(SMALL, SIZE), WHOLE, nodes=4)),
}
PROMPTS, LIMITS, SEEDS = [[1], [4, 4, 5, 4], [0, 3, 5, 2, 0, 3], [2]], [40, 20, 2, 1], [7, 8, 9, 10]


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", CASCADES)
def test_a_cascade_holds_what_every_proposer_promises(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(test_every_proposer.PROPOSERS, name, CASCADES[name])
    every = test_every_proposer
    for condition in ("cold", "as it is", "all limits"):
        every.test_every_proposer_is_lossless_under_every_rule(name, method, condition, 40_000)
    every.test_at_temperature_0_the_text_is_the_target_s_own(name, method)
    every.test_a_sequence_is_the_same_alone_and_in_a_batch(name, method)
    every.test_every_proposer_and_rule_is_on_the_kernels_as_on_the_cpu(name, method, monkeypatch)


def test_a_cascade_holds_what_a_drafter_s_proposers_promise() -> None:
    kind = partial(Cascade, NGrams())
    for size in (2, 5):
        test_parts.test_a_drafter_of_another_size_than_its_affinity_is_refused(kind, size)
    for source in ("recent tokens", "both", "all three"):
        test_dynamic_tokens.test_a_source_that_reads_what_is_new_drafts_as_one_that_is_told_all(
            kind, source
        )
    changes_width = "test_a_source_that_changes_its_width_within_a_step_is_refused_by_name"
    getattr(test_dynamic_tokens, changes_width)(kind)
    unread = "test_behind_a_token_that_the_drafter_cannot_read_nothing_is_drafted"
    getattr(test_huggingface, unread)(kind)


def test_an_inner_proposer_that_could_draft_what_the_drafter_cannot_read_is_refused() -> None:
    size, readable = test_huggingface.SIZE, test_huggingface.SIZE - 11
    drafter = test_huggingface.fewer_ids()
    own = Affinity.intersection(Vocabulary(range(readable), size))
    model = HuggingFaceModel(test_huggingface.tiny())
    inner = DrafterChain(model, Affinity.intersection(Vocabulary.identity(size)))
    needs = rf"reads ids in \[0, {readable}\), .* all of {size} .*ids below {readable}"
    with pytest.raises(ValueError, match=f"Cascade: .* {needs}"):
        Cascade(inner, drafter, own)


def test_it_drafts_for_a_drafter_in_a_cascade_but_cannot_be_drafted_for() -> None:
    theirs = "SentencePiece"
    own, middle = text_drafter("byte-level", theirs), LastToken(bigrams(theirs) + 0.1)
    affinity = Affinity.intersection(Vocabulary.identity(TOKENIZERS[theirs]().get_vocab_size()))
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.0}
    alone = SpeculativeDecoder(target(theirs), draft_length=0)
    expected = alone.generate(prompts(theirs), **options).tokens
    for inner in (ExactMatch(own), DrafterChain(own, own.between(affinity.target_size))):
        cascade = Cascade(inner, middle, affinity)
        decoder = SpeculativeDecoder(target(theirs), proposer=cascade)
        found = decoder.generate(prompts(theirs), **options)
        assert found.tokens == expected
        assert found.statistics.mean_accepted_length > 5
    drafted_for = Cascade(NGrams(), own, own.between(affinity.target_size))
    with pytest.raises(ValueError, match=r"TextDrafter.feed: keep is .*; needs 0 or 1"):
        SpeculativeDecoder(target(theirs), proposer=drafted_for).generate([[400] * 9], **options)


def test_a_cascade_takes_fewer_passes_of_its_drafter() -> None:
    """The drafter drafts for itself: two of three passes go, and nothing that it drafts."""
    itself = DrafterChain(TableModel(pruned(DRAFTER, AFFINITY), SIZE), AFFINITY, draft_length=2)
    passes, accepted = [], []
    for proposer in (cascade(NGrams(draft_length=0)), cascade(itself)):
        assert isinstance(proposer.drafter, TableModel)
        result = decoder(proposer).generate([[1]], max_new_tokens=600, seeds=[3])
        passes.append(proposer.drafter.passes / result.statistics.target_passes)
        accepted.append(result.statistics.mean_accepted_length)
    assert passes[0] == pytest.approx(3, abs=0.1)
    assert passes[1] == pytest.approx(1, abs=0.1)
    assert accepted[0] == pytest.approx(accepted[1], rel=0.1)


def test_the_caches_of_real_models_roll_back_in_every_stage() -> None:
    """Greedy, three stages: the text of the target alone, with prompts of several lengths."""
    pytest.importorskip("transformers")
    from tests.tiny_llamas import llama

    def model(seed: int) -> HuggingFaceModel:
        return HuggingFaceModel(llama(24, seed=seed, intermediate_size=24, layers=2))

    whole = Affinity.intersection(Vocabulary.identity(24))
    smallest = Cascade(NGrams(), model(1), whole, draft_length=3)
    proposer = Cascade(smallest, model(1), whole, draft_length=6)
    prompts, options = [[5, 3, 5], [7], list(range(9))], {"temperature": 0, "max_new_tokens": 40}
    expected = SpeculativeDecoder(model(1), draft_length=0).generate(prompts, **options)
    found = SpeculativeDecoder(model(1), proposer=proposer).generate(prompts, **options)
    assert found.tokens == expected.tokens
    assert found.statistics.mean_accepted_length > 4  # all three are one model


def test_a_draft_ends_where_the_drafter_has_no_distribution() -> None:
    """After a 3, and there alone."""
    table = pruned(DRAFTER, AFFINITY)
    table[3::SIZE] = torch.nan
    proposer = Cascade(NGrams(), TableModel(table, SIZE), AFFINITY, draft_length=3)
    whole = decoder(proposer).generate(PROMPTS, max_new_tokens=40, temperature=0)
    assert whole.tokens == [greedy(TARGET, prompt, 40) for prompt in PROMPTS]
    s = [Continuation(list(p), len(p), len(p), 99, ()) for p in ([1], [2, 3])]
    zeros = torch.zeros(2, dtype=torch.int64)
    proposer.reset(2)
    tokens = proposer.propose(s, Step([9, 9], torch.ones(2), zeros, zeros + 1, {})).tokens
    assert tokens[0, 0] >= 0
    assert (tokens[1] == -1).all()


def test_a_drafter_that_reads_states_is_refused() -> None:
    class States(TableModel):
        observed = ()

        def observe(self, states: Sequence[Tensor]) -> None: ...

    with pytest.raises(ValueError, match="drafter is a States, which reads the target's states"):
        Cascade(NGrams(), States(DRAFTER, SIZE), WHOLE)


class Dropping(Verification):
    """The mistake: a chain ends where an inner draft is rejected, before what replaces it."""

    def __call__(
        self, output: Output, proposal: Proposal, step: Step, logprobs: Any, **limits: Any
    ) -> Decided:
        decided = super().__call__(output, proposal, step, logprobs, **limits)
        for new, drafts in zip(decided.tokens, proposal.tokens.tolist(), strict=True):
            if len(new) <= len(drafts) - drafts.count(-1):
                new[-1] = -1
        return decided


@pytest.mark.parametrize("method", ["token", "block"])
def test_control_dropping_replaced_tokens_is_caught(method: str) -> None:
    proposer = cascade(small())
    proposer.rule = Dropping(SMALLER)
    assert p_value(lambda: proposer, method, AS_IT_IS, 2_000) < CAUGHT


def one_key(seeds: Tensor, positions: Tensor, stage: int = 0) -> Tensor:
    """The mistake: the stages of a step share its key."""
    return seeds


def stale(seeds: Tensor, positions: Tensor, stage: int = 0) -> Tensor:
    """The mistake: a stage's keys stay the same where its positions are drafted anew."""
    return seeds ^ 12345678901


@pytest.mark.parametrize("mistake", [one_key, stale])
def test_control_keys_that_are_not_the_stage_s_own_are_caught(
    mistake: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdk_cuda.functional, "step_keys", mistake)
    assert p_value(CASCADES["dynamic tokens"], "token", AS_IT_IS, 4_000) < CAUGHT


@pytest.mark.parametrize("mistake", [None, one_key])
def test_a_million_outputs(
    mistake: Callable[..., Tensor] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By blocks shared keys show in 40,000 outputs with some seeds alone."""
    if mistake is not None:
        monkeypatch.setattr(rdk_cuda.functional, "step_keys", mistake)
    p = p_value(CASCADES["n-grams"], "block", AS_IT_IS, 1_000_000)
    assert p < CAUGHT if mistake else p > FALSE_ALARM
