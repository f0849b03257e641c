"""Drafters with another tokenizer leave the target's joint distribution as it is.

The counts of all continuations of three tokens against their exact probabilities, as in
`lossless.py`. The target writes letters, whole ones and halves of é, and pairs of letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from table_model import chi_square, continuations, joint
from text_models import LastTwoOf, byte_level, ids_of
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterChain, ExactMatch, Proposer, SpeculativeDecoder, TextDrafter
from rdk_cuda.decoding.proposal import Proposal, padded
from rdk_cuda.functional import Draft

LENGTH, SAMPLES, FALSE_ALARM, CAUGHT = 3, 8_000, 1e-4, 1e-6
SLOW = pytest.mark.night

OURS = byte_level([("a", "b"), ("Ġ", "a"), ("Ã", "©"), ("ab", "ab")])
THEIRS = byte_level([("b", "a"), ("a", "a"), ("Ġ", "b")])
WRITTEN = ids_of(THEIRS, b"a", b"b", b"ba", b" b", b"\xc3", b"\xa9")
DRAFTED = ids_of(OURS, b"a", b"b", b"ab", b" a", "é".encode(), b"abab")


def table(known: Sequence[int], size: int, others: float, seed: int) -> Tensor:
    """Random logits of a few tokens, after any two of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((len(known) ** 2, size), others)
    logits[:, list(known)] = 1.5 * torch.randn(len(known) ** 2, len(known), generator=generator)
    return logits


TARGET = LastTwoOf(WRITTEN, table(WRITTEN, 259, -math.inf, seed=1))
PROMPT = [WRITTEN[1], WRITTEN[0]]


@cache
def drafter() -> TextDrafter:
    return TextDrafter(LastTwoOf(DRAFTED, table(DRAFTED, 260, -5.0, seed=2)), OURS, THEIRS)


@cache
def exact(temperature: float) -> dict[tuple[int, ...], float]:
    return joint(TARGET, PROMPT, LENGTH, temperature, WRITTEN)


def p_value(
    proposer: Proposer, temperature: float = 1.0, method: Any = "token", samples: int = SAMPLES
) -> float:
    affinity = proposer.affinity if type(proposer) is DrafterChain else None
    decoder = SpeculativeDecoder(TARGET, None, affinity, proposer=proposer, method=method)
    found = continuations(lambda: decoder, PROMPT, LENGTH, samples, temperature=temperature)
    return chi_square(found, exact(temperature))


def by_affinity(affinity: Affinity) -> DrafterChain:
    return DrafterChain(drafter(), affinity, draft_length=2)


BETWEEN = drafter().between(259)
INTERSECTION = Affinity.intersection(Vocabulary.between(OURS, THEIRS))


def exact_match() -> ExactMatch:
    return ExactMatch(drafter(), draft_length=3)


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "between": lambda: by_affinity(BETWEEN),
    "intersection": lambda: by_affinity(INTERSECTION),
    "exact match": exact_match,
}
FAST = [("between", 1.0, "token"), ("intersection", 0.7, "block"), ("exact match", 1.0, "token")]
OTHERS = [("between", 0.7, "block"), ("intersection", 1.0, "token"), ("exact match", 0.7, "token")]
CASES = [
    *((*case, SAMPLES) for case in FAST),
    *(pytest.param(*case, SAMPLES, marks=SLOW) for case in OTHERS),
    *(pytest.param(*case, 10**6, marks=SLOW) for case in FAST),
]


@pytest.mark.parametrize(("name", "temperature", "method", "samples"), CASES)
def test_a_drafter_with_another_tokenizer_is_lossless(
    name: str, temperature: float, method: str, samples: int
) -> None:
    assert p_value(PROPOSERS[name](), temperature, method, samples) > FALSE_ALARM


def test_control_another_q_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafts are judged: the drafter's columns in another order than the map of them."""
    verify = rdk_cuda.verify

    def mistaken(logits: Tensor, draft: Any, *rest: Any, **options: Any) -> Any:
        if draft.logits is not None:
            draft = replace(draft, stats=None, logits=draft.logits.roll(1, -1).contiguous())
        return verify(logits, draft, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", mistaken)
    assert p_value(by_affinity(BETWEEN)) < CAUGHT


def test_control_retokenised_drafts_with_a_q_that_did_not_draw_them_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(tokens: Sequence[Sequence[int]], step: Any) -> Proposal:
        chains = [list(own[: room - 1]) for own, room in zip(tokens, step.room, strict=True)]
        nodes = padded(chains, step.seeds.device)
        draft = Draft.without_distribution(nodes, seeds=step.seeds, positions=step.positions)
        logits = TARGET.table.mean(0).expand(*nodes.shape, -1)
        one = torch.ones(len(chains))
        return Proposal(nodes, replace(draft, logits=logits.contiguous(), temperature=one))

    monkeypatch.setattr(Proposal, "fixed", staticmethod(drawn))
    assert p_value(exact_match()) < CAUGHT
