"""The expected gain of a drafter's trees, from a recording."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import functional
from ...decoding.drafter_tree import FIXED_FROM
from ...decoding.trees import grown_alike
from ...drafter import FullHead, PrunedDrafter
from ..recording import Samples
from ..request import Request
from .lengths import compared
from .stage import Stage, State

_BLOCK = 32  # of rows over the target's vocabulary
_TREES = 512
NODES, PASSES, WIDTH = 8, 4, 2


class ExpectedTree(NamedTuple):
    """A tree of at most so many nodes in so many passes.

    Attributes:
        accepted: nodes for each pass of the target, judged by token.
        speed: tokens in the time of a pass of the target, which reads more rows in the same time.
    """

    nodes: int
    passes: int
    accepted: float
    speed: float


@torch.no_grad()
def expected_tree(
    samples: Samples,
    drafter: PrunedDrafter,
    full_head: FullHead,
    temperature: float,
    *,
    draft_cost: float,
) -> ExpectedTree | None:
    """Estimate what a `DrafterTree` gains at 512 places spread over the samples.

    Successive samples of a document stand for successive depths of a tree, whichever of its nodes
    are there: only the text's own continuation is recorded, so what follows other tokens counts as
    just as easy. None: no document has as many samples as there are passes.

    Args:
        temperature: a recorded one, or 0.
        draft_cost: the time of a drafter's pass in passes of the target, as measured.
    """
    documents = samples.documents.unfold(0, PASSES, 1) if len(samples) >= PASSES else None
    if documents is None or not bool((whole := documents[:, 0] == documents[:, -1]).any()):
        return None
    begins = whole.nonzero()[:, 0]
    begins = begins[:: -(-len(begins) // _TREES)]
    rows = begins[:, None] + torch.arange(PASSES, device=begins.device)
    parts = [
        _children(samples.select(own), drafter, full_head, temperature)
        for own in rows.flatten().split(_BLOCK)
    ]
    q, p, drawn = (
        torch.cat(part).unflatten(0, rows.shape).tolist() for part in zip(*parts, strict=True)
    )
    accepted = [
        grown_alike(list(zip(*levels, strict=True)), NODES, WIDTH)
        for levels in zip(q, p, drawn, strict=True)
    ]
    mean = sum(accepted) / len(accepted)
    return ExpectedTree(NODES, PASSES, mean, (1 + mean) / (1 + draft_cost * PASSES))


def _children(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a node at each sample.

    Returns:
        `[n, w]` q of its fixed children, 0 where there is none, and the probability that each is
        accepted; and `[n]` that of the drawn child, -1 where nothing is drawn.
    """
    columns = drafter.columns(full_head, samples.hidden, samples.contexts)
    q = functional.redistribute(
        **columns, affinity=drafter.affinity, temperature=temperature or 1.0
    ).double()
    p = torch.zeros_like(q).scatter(
        1, samples.targets.long(), samples.target_probs(temperature).double()
    )
    best = q.topk(WIDTH)
    if temperature == 0:
        return best.values, p.gather(1, best.indices), q.new_full((len(q),), -1.0)
    fixed = best.values >= FIXED_FROM
    fixed[:, -1] = False  # whose place the drawn child has
    taken = torch.zeros_like(q, dtype=torch.bool).scatter(1, best.indices, fixed)
    rest = q.masked_fill(taken, 0.0)
    rest = rest / rest.sum(1, keepdim=True)
    return (
        best.values.where(fixed, 0.0),
        p.gather(1, best.indices).where(fixed, 0.0),
        torch.minimum(p, rest).sum(1).nan_to_num(0.0),
    )


class Tree(Stage[Request]):
    """The expected gain of a tree in place of a chain, at the same cost."""

    name = "tree"
    needs = ("affinity", "drafts")

    def run(self, state: State[Request]) -> list[ExpectedTree | None]:
        cost = state.request.draft_cost
        return [expected_tree(*given, draft_cost=cost) for given in compared(state) if cost]

    def describe(self, state: State[Request], place: int) -> str:
        one = self._of(state, place)
        if one is None:
            return ""
        chain = state.made["drafts"][place]
        return (
            f"Expected at this cost of a pass: chains of {chain.draft_length} at most "
            f"{chain.speed:.2f} × the target's speed; trees of {one.nodes} nodes in "
            f"{one.passes} passes {one.speed:.2f} ×, {one.accepted:.2f} accepted."
        )

    def settings(self, state: State[Request], place: int) -> dict[str, Any]:
        one = self._of(state, place)
        return {self.name: None if one is None else one._asdict()}

    def _of(self, state: State[Request], place: int) -> ExpectedTree | None:
        made: list[ExpectedTree | None] = state.made[self.name]
        return made[place] if made else None
