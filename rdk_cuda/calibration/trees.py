"""What a tree of a drafter is expected to gain, from a recording."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..decoding.drafter_tree import FIXED_FROM
from ..decoding.trees import grown_alike
from ..drafter import FullHead, PrunedDrafter
from .recording import Samples

_BLOCK = 32  # of rows over the target's vocabulary
_TREES = 512


class ExpectedTree(NamedTuple):
    """What a tree is expected to do.

    Attributes:
        nodes, passes: how many it has at most, and in how many passes of the drafter.
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
    nodes: int = 8,
    passes: int = 4,
    width: int = 2,
    fixed_from: float = FIXED_FROM,
) -> ExpectedTree | None:
    """What a `DrafterTree` would gain where the samples are, at 512 places spread over them.

    Successive samples of a document stand for successive depths of a tree, whichever of its nodes
    are there: only the text's own continuation is recorded, so what follows other tokens counts as
    just as easy. None: no document has as many samples as there are passes.

    Args:
        temperature: a recorded one, or 0.
        draft_cost: the time of a drafter's pass in passes of the target, as measured.
        nodes, passes, width, fixed_from: as of `DrafterTree`.
    """
    documents = samples.documents.unfold(0, passes, 1) if len(samples) >= passes else None
    if documents is None or not bool((whole := documents[:, 0] == documents[:, -1]).any()):
        return None
    begins = whole.nonzero()[:, 0]
    begins = begins[:: -(-len(begins) // _TREES)]
    rows = begins[:, None] + torch.arange(passes, device=begins.device)
    parts = [
        _children(samples.select(own), drafter, full_head, temperature, width, fixed_from)
        for own in rows.flatten().split(_BLOCK)
    ]
    q, p, drawn = (
        torch.cat(part).unflatten(0, rows.shape).tolist() for part in zip(*parts, strict=True)
    )
    accepted = [
        grown_alike(list(zip(*levels, strict=True)), nodes, width)
        for levels in zip(q, p, drawn, strict=True)
    ]
    mean = sum(accepted) / len(accepted)
    return ExpectedTree(nodes, passes, mean, (1 + mean) / (1 + draft_cost * passes))


def _children(
    samples: Samples,
    drafter: PrunedDrafter,
    full_head: FullHead,
    temperature: float,
    width: int,
    fixed_from: float,
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
    best = q.topk(width)
    if temperature == 0:
        return best.values, p.gather(1, best.indices), q.new_full((len(q),), -1.0)
    fixed = best.values >= fixed_from
    fixed[:, -1] = False  # whose place the drawn child has
    taken = torch.zeros_like(q, dtype=torch.bool).scatter(1, best.indices, fixed)
    rest = q.masked_fill(taken, 0.0)
    rest = rest / rest.sum(1, keepdim=True)
    return (
        best.values.where(fixed, 0.0),
        p.gather(1, best.indices).where(fixed, 0.0),
        torch.minimum(p, rest).sum(1).nan_to_num(0.0),
    )
