"""RSD in the reference returns the target's distribution over whole texts.

Chi-square tests of texts of three tokens against the exact joint distribution of a target whose
logits depend on the last two tokens; fixed seeds, false-alarm rate 1e-6 each. The controls forget a
part of recursive rejection, or draw siblings otherwise than it takes them to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

from rdk_cuda.reference import Beam, beam_search_step, gumbel_top_k, recursive_rejection, rsd
from tests.statistics.chi_square import assert_caught, assert_fits
from tests.statistics.markov import ORDER, Loop
from tests.statistics.test_mixed_trees import LENGTH, agreeing

AT_ONCE = 50_000
LIGHT, MANY = 100_000, pytest.param(1_000_000, marks=pytest.mark.night)
Draws = Callable[[Tensor, Tensor, int], Tensor]


def gumbel(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return -torch.empty(shape, dtype=torch.float64).exponential_(generator=source).log()


@dataclass
class RSDLoop(Loop):
    """Speculative decoding with trees: constant branching, or else a beam of `drafts` levels."""

    branching: tuple[int, ...] = ()
    beam: int = 3
    draw: Draws = gumbel_top_k
    source: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def step(
        self, text: Tensor, done: Tensor, seeds: Tensor, offered: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        models, (batch, most) = self.models, (len(text), self.drafts)
        log_q = (models.drafter.double() / models.draft_temperature).log_softmax(1)
        p = (models.target.double() / models.target_temperature).softmax(1)
        size, contexts = models.size, models.context(text, ORDER + done)[:, None]
        targets, q, tokens, parents, rows = [p[contexts]], [], [], [], []
        beam, first = Beam.root(log_q[contexts]), -1
        for level in range(most):
            here = log_q[contexts]
            noise = gumbel(here.shape, self.source)
            if self.branching:
                drawn = self.draw(here, noise, self.branching[level]).flatten(1)
                above = torch.arange(here.shape[1]).repeat_interleave(self.branching[level])
                beam = Beam(drawn, above.expand(batch, -1), *beam[2:])
            else:
                beam = beam_search_step(here, beam, noise, self.beam)
            nodes = sum(part.shape[1] for part in tokens)
            tokens.append(beam.tokens)
            parents.append(beam.parents + first)
            rows.append(beam.parents + sum(part.shape[1] for part in q))
            q.append(here.exp())
            contexts = contexts.gather(1, beam.parents) * size + beam.tokens.clamp(min=0)
            contexts, first = contexts % size**ORDER, nodes
            targets.append(p[contexts])
        tree = torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(rows, 1)
        uniforms = torch.rand(
            batch, most + 1, tree[0].shape[1] + 1, dtype=torch.float64, generator=self.source
        )
        put, path = rsd.verify_rsd(torch.cat(targets, 1), torch.cat(q, 1), *tree, uniforms)
        return put, (path >= 0).sum(1), path


def texts(loop: RSDLoop, sequences: int) -> Tensor:
    parts = [AT_ONCE] * (sequences // AT_ONCE)
    return torch.stack([loop.texts(part, LENGTH) for part in parts]).sum(0)


SHAPES: dict[str, dict[str, object]] = {
    "constant branching": {"branching": (3, 2, 1)},
    "wide at the end": {"branching": (1, 4), "drafts": 2},
    "a beam": {"drafts": 3},
    "a beam of all": {"drafts": 2, "beam": 12},
}


@pytest.mark.parametrize("sequences", [LIGHT, MANY])
@pytest.mark.parametrize("agreement", [0.2, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_drawn_without_replacement_are_lossless(
    shape: str, agreement: float, sequences: int
) -> None:
    models = agreeing(agreement)
    loop = RSDLoop(models, **{"drafts": 3} | SHAPES[shape])  # type: ignore[arg-type]
    assert_fits(texts(loop, sequences), models.exact(LENGTH))


def with_replacement(log_q: Tensor, noise: Tensor, count: int) -> Tensor:
    source = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(log_q.exp().flatten(0, -2), count, True, generator=source)
    return drawn.unflatten(0, log_q.shape[:-1])


def unordered(log_q: Tensor, noise: Tensor, count: int) -> Tensor:
    return gumbel_top_k(log_q, noise, count).sort().values


@pytest.mark.parametrize("draw", [with_replacement, unordered])
def test_control_siblings_drawn_otherwise_are_caught(draw: Draws) -> None:
    models = agreeing(0.2)
    loop = RSDLoop(models, 3, branching=(3, 2, 1), draw=draw)
    assert_caught(texts(loop, LIGHT), models.exact(LENGTH))


@pytest.mark.parametrize("shape", ["constant branching", "a beam"])
def test_control_a_residual_that_is_not_renormalised_is_caught(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unnormalised(p: Tensor, q: Tensor) -> Tensor:
        excess = (p - q).clamp(min=0)
        return excess.where(excess.sum(-1, keepdim=True) > 0, p)

    monkeypatch.setattr(rsd, "residual", unnormalised)
    models = agreeing(0.5)
    loop = RSDLoop(models, **{"drafts": 3} | SHAPES[shape])  # type: ignore[arg-type]
    assert_caught(texts(loop, LIGHT), models.exact(LENGTH))


def test_control_q_that_keeps_what_was_rejected_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(p: Tensor, q: Tensor, siblings: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
        accepted = siblings.new_full(siblings.shape[:-1], -1)
        for k in range(siblings.shape[-1]):
            now, left = recursive_rejection(p, q, siblings[..., k : k + 1], coins[..., k : k + 1])
            going = accepted < 0
            accepted = torch.where(going & (now == 0), k, accepted)
            p = left.where(going[..., None], p)
        return accepted, p

    monkeypatch.setattr(rsd, "recursive_rejection", forgetful)
    models = agreeing(0.5)
    loop = RSDLoop(models, 3, branching=(3, 2, 1))
    assert_caught(texts(loop, LIGHT), models.exact(LENGTH))


@pytest.mark.parametrize("agreement", [0.2, 0.8])
def test_a_beam_and_top_k_draw_the_same_siblings(agreement: float) -> None:
    """The children of one node: Plackett and Luce's probability of each ordered pair."""
    q = agreeing(agreement).drafter[3].double().softmax(0)
    log_q = q.log().expand(LIGHT, 1, -1)
    noise = gumbel(tuple(log_q.shape), torch.Generator().manual_seed(2))
    pairs = q[:, None] * q[None, :] / (1 - q)[:, None] * (1 - torch.eye(len(q)))
    drawn = gumbel_top_k(log_q, noise, 2)[:, 0]
    beam = beam_search_step(log_q, Beam.root(log_q), noise, 2)
    assert torch.equal(beam.tokens, drawn)
    assert bool((beam.perturbed[:, 0] == 0).all())  # the root's own
    counts = torch.bincount(drawn[:, 0] * len(q) + drawn[:, 1], minlength=len(q) ** 2)
    assert_fits(counts, pairs)


def test_the_probability_that_some_sibling_is_accepted_is_recursive() -> None:
    """Of two siblings of three tokens, by hand; within 5 standard errors."""
    p, q = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    rejected = 0.0
    for x in range(3):
        miss = max(q[x] - p[x], 0.0)  # drawn and rejected
        left = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
        second = q.clone()
        second[x] = 0
        rejected += float(miss * (1 - torch.minimum(left, second / second.sum()).sum()))
    source = torch.Generator().manual_seed(3)
    log_q = q.log().expand(LIGHT, -1)
    siblings = gumbel_top_k(log_q, gumbel(tuple(log_q.shape), source), 2)
    coins = torch.rand(LIGHT, 2, dtype=torch.float64, generator=source)
    accepted, _ = recursive_rejection(p.expand(LIGHT, -1), log_q.exp(), siblings, coins)
    error = math.sqrt(rejected * (1 - rejected) / LIGHT)
    assert abs(float((accepted < 0).double().mean()) - rejected) < 5 * error
