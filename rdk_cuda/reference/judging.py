"""Judge drafts that follow each other, by token or by block: DESIGN sections 2 and 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .random import (
    ACCEPT,
    BLOCK,
    BONUS,
    DIRECT,
    RESIDUAL,
    TRIES,
    Words,
    below,
    draw,
    philox,
    uniform,
)


@dataclass(frozen=True)
class SequenceStep:
    """One sequence's decoding step, or in a tree a part of it.

    Attributes:
        drafts: the drafted tokens that are considered.
        target: p behind the first j drafts, ``[V_t]``; None: no distribution.
        draft: q that draft j was drawn from, its token given; None: rejected by rule.
        key, position: the step's key, and the absolute position of the first draft.
        record: told how near a decision came to another outcome.
        nesting: how many blocks the walk down a tree has left behind.
    """

    drafts: list[int]
    target: Callable[[int], Tensor | None]
    draft: Callable[[int, int], Tensor | None]
    key: int
    position: int
    record: Callable[[str, float], None]
    nesting: int = 0

    def token(self, j: int) -> int:
        """Draft j, or -1 at the end of the draft."""
        return self.drafts[j] if j < len(self.drafts) else -1

    def words(self, j: int, purpose: int, attempt: int = 0) -> Words:
        """Random words for what is decided at draft j."""
        branch = self.nesting if purpose == BLOCK else 0
        return philox(self.key, self.position + j, purpose, attempt, branch)


def decide(step: SequenceStep, method: int, greedy: bool) -> list[int]:
    """Return the accepted drafts and one drawn token, -1 where there is none."""
    return by_block(step) if method == 1 and not greedy else by_token(step, greedy)


def by_token(step: SequenceStep, greedy: bool) -> list[int]:
    """Judge one draft after the other."""
    tokens: list[int] = []
    while (p := step.target(j := len(tokens))) is not None:
        x = step.token(j)
        if x == -1:
            return [*tokens, draw(p, step.words(j, BONUS), partial(step.record, "bonus"))]
        q = step.draft(j, x)
        if q is None or not _accepts(step, j, p, q, x, greedy):
            q = torch.zeros_like(p) if q is None else q
            return [*tokens, int(p.argmax()) if greedy else _draw_residual(step, j, p, q)]
        tokens.append(x)
    return [*tokens, -1]


def _accepts(step: SequenceStep, j: int, p: Tensor, q: Tensor, x: int, greedy: bool) -> bool:
    if greedy:
        return bool(p[x] == 1)
    return below("accept", uniform(step.words(j, ACCEPT)[0]), q[x], p[x], step.record)


def _draw_residual(step: SequenceStep, j: int, p: Tensor, q: Tensor) -> int:
    """Draw a token from ``max(p - q, 0)``, which is built only when every try has failed."""
    for attempt in range(TRIES):
        words = step.words(j, RESIDUAL, attempt)
        y = draw(p, words, partial(step.record, "residual"))
        if below("keep", uniform(words[2]), p[y], p[y] - q[y], step.record):
            return y
    excess = (p - q).clamp(min=0)
    # Rounding errors of p - q are in proportion to p, however little mass is left: hence the scale.
    weights = excess if excess.any() else p
    return draw(weights, step.words(j, DIRECT), partial(step.record, "direct"), scale=p)


def by_block(step: SequenceStep) -> list[int]:
    """Find the longest prefix that wins its race, and the token that won it."""
    factors = [torch.ones((), dtype=torch.float32, device="cpu")]
    q_behind: list[Tensor] = []
    while float(factors[-1]) > 0:
        j = len(q_behind)
        x = step.token(j)
        p, q = step.target(j), None if x == -1 else step.draft(j, x)
        if p is None or q is None:
            break
        mass = factors[-1].to(p) * p[x]
        least = torch.minimum(mass / q[x], torch.ones_like(mass))
        factors.append(torch.where(mass == 0, mass, least))
        q_behind.append(q)
    for i in reversed(range(len(factors))):
        q = q_behind[i] if i < len(q_behind) else None
        y = _race(step, i, factors[i], q)
        if y is not None:
            return [*step.drafts[:i], y]
    raise AssertionError("prefix 0 is never given up")


def _race(step: SequenceStep, i: int, c: Tensor, q: Tensor | None) -> int | None:
    """Find the token that wins at prefix i, -1 where p is no distribution; None: i is given up.

    Args:
        c: the prefix's factor ``c_i``.
        q: what the draft behind the prefix was drawn from; None: there is none.
    """
    one = torch.ones_like(c)
    for attempt in range(TRIES):
        words = step.words(i, BLOCK, attempt)
        if not below("go on", uniform(words[3]), one, c, step.record):
            return None
        p = step.target(i)
        if p is None:
            return -1
        y = draw(p, words, partial(step.record, "race"))
        if q is None:
            return y
        if below("keep", uniform(words[2]), c * p[y], c * p[y] - q[y], step.record):
            return y
    assert p is not None
    assert q is not None
    return _race_directly(c, p, q, step.words(i, BLOCK, TRIES), step.record)


def _race_directly(
    c: Tensor, p: Tensor, q: Tensor, words: Words, record: Callable[[str, float], None]
) -> int | None:
    excess = (c * p - q).clamp(min=0)
    accepted = excess.sum()
    decided = accepted + (1 - c)
    if c < 1:
        # Of the mass of p, whose rounding errors these sums have.
        record("give up", abs(float(uniform(words[3]) * decided - accepted)))
        if not uniform(words[3]) * decided < accepted:
            return None
    weights = excess if excess.any() else p
    return draw(weights, words, partial(record, "direct"), scale=p)
