"""Cascades: drafters that are decoded speculatively themselves draft what they draft alone.

Chi-square of three tokens against their exact probabilities; fixed seeds. Over seeds each `fits`
would fail falsely once in 10,000 times; each control is beyond 1e-6. Marked `night` are the same
tests with more samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from table_model import TableModel, greedy, pruned, random_table
from test_parts import (
    AFFINITY,
    CAUGHT,
    DRAFTER,
    FALSE_ALARM,
    SAMPLES,
    TARGET,
    VOCABULARY,
    decoder,
    p_value,
)
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import (
    Cascade,
    DrafterChain,
    DrafterTree,
    NGrams,
    Output,
    Proposal,
    Proposer,
    Step,
)
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.rules import Decided, Verification

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


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", CASCADES)
def test_every_cascade_is_lossless(
    name: str, method: str, temperature: float, samples: int
) -> None:
    assert p_value(CASCADES[name](), samples, temperature, method) > FALSE_ALARM


@pytest.mark.parametrize("name", CASCADES)
def test_at_temperature_0_the_text_is_the_target_s_own(name: str) -> None:
    result = decoder(CASCADES[name]()).generate(PROMPTS, max_new_tokens=LIMITS, temperature=0)
    expected = zip(PROMPTS, LIMITS, strict=True)
    assert result.tokens == [greedy(TARGET, prompt, limit) for prompt, limit in expected]
    assert sum(result.statistics.accepted) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", CASCADES)
def test_a_sequence_is_the_same_alone_and_in_a_batch(name: str, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "top_k": 4, "min_p": 0.02}
    together = decoder(CASCADES[name]()).generate(
        PROMPTS, max_new_tokens=LIMITS, seeds=SEEDS, **options
    )
    for prompt, limit, seed, tokens in zip(PROMPTS, LIMITS, SEEDS, together.tokens, strict=True):
        alone = decoder(CASCADES[name]()).generate(
            [prompt], max_new_tokens=limit, seeds=[seed], **options
        )
        assert alone.tokens == [tokens]


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
    assert p_value(proposer, 2_000, 1.0, method) < CAUGHT


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
    assert p_value(CASCADES["dynamic tokens"](), 4_000, 1.0) < CAUGHT


@pytest.mark.night
@pytest.mark.parametrize("mistake", [None, one_key])
def test_a_million_outputs_of_three_stages(
    mistake: Callable[..., Tensor] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By blocks shared keys show in 40,000 outputs with some seeds alone."""
    if mistake is not None:
        monkeypatch.setattr(rdk_cuda.functional, "step_keys", mistake)
    p = p_value(three_stages(), 1_000_000, 1.0, "block")
    assert p < CAUGHT if mistake else p > FALSE_ALARM
