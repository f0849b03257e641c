"""A proposer of mixed trees: at each node fixed tokens, and one that is drawn from what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..affinity import Affinity
from ..dynamic_tokens import DynamicTokens, FullHead
from ..functional import Draft
from ..functional.ranges import Range
from .generation import Continuation
from .models import Output, TreeModel, feed_unread
from .proposal import Proposal, Step, padded
from .proposers import DrafterChain
from .trees import branch

__all__ = ["DrafterTree"]

ACCEPTANCE = 0.7  # of a drawn token, for its value; trees change little between 0.6 and 0.8


class _Node(NamedTuple):
    """A proposed token.

    Attributes:
        token: the target id.
        parent: an earlier node of its tree, or -1.
        row: the row of the drafter's logits that it was drawn from, or -1.
        value: the estimated probability that it is accepted, with all before it.
    """

    token: int
    parent: int
    row: int
    value: float


@dataclass
class _Growing:
    """A sequence's tree.

    Attributes:
        levels: how many it may have.
        nodes: all so far, parents first.
        read: those of them that the drafter has read or reads next, in this order.
        frontier: what it reads next, -1 for the root.
    """

    levels: int
    nodes: list[_Node] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)

    def add(self, parent: int, fixed: Sequence[tuple[int, float]], drawn: int, row: int) -> None:
        """The children of a node: tokens with their q, and one that was drawn, or -1."""
        value = self.nodes[parent].value if parent >= 0 else 1.0
        self.nodes += [_Node(token, parent, -1, value * q) for token, q in fixed]
        if drawn >= 0:
            left = max(1 - sum(q for _, q in fixed), 0.0)
            self.nodes.append(_Node(drawn, parent, row, value * ACCEPTANCE * left))

    def best(self, among: Sequence[int], most: int) -> list[int]:
        """The nodes of the largest values, among equals the earlier ones; parents first."""
        return sorted(sorted(among, key=lambda n: (-self.nodes[n].value, n))[:most])

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child down to a node; none for -1."""
        return [self.nodes[n].token for n in branch([n.parent for n in self.nodes], node)]


class DrafterTree(DrafterChain):
    """A tree of a drafter's likeliest tokens, and of tokens that are drawn from it.

    DESIGN section 2, "Trees", and section 6. Level by level the drafter reads the most valuable
    nodes. The children of a node are fixed tokens, those with at least a certain q, and one that is
    drawn from q without them. Of all nodes the most valuable are proposed. A node's value is the
    estimated probability that it is accepted. It says nothing about a drawn token that was not
    known before, so none is dropped for what it is. At temperature 0 nothing is drawn.

    Args:
        drafter: reads trees.
        affinity, draft_temperature, truncate_drafts, dynamic_tokens, full_head: as of
            `DrafterChain`.
        nodes: N, the most that are proposed.
        passes: of the drafter in a step, and so the most levels of a tree.
        width: the most nodes that a pass reads, and the most children of a node.
        fixed_from: the least q of a fixed token at temperatures above 0.

    Raises:
        TypeError: a drafter that reads no trees.
        ValueError: what a `DrafterChain` refuses.
    """

    drafter: TreeModel

    def __init__(
        self,
        drafter: TreeModel,
        affinity: Affinity,
        *,
        nodes: int = 8,
        passes: int = 4,
        width: int = 2,
        fixed_from: float = 0.3,
        draft_temperature: float | None = None,
        truncate_drafts: bool = True,
        dynamic_tokens: DynamicTokens | None = None,
        full_head: FullHead | None = None,
    ) -> None:
        if not isinstance(drafter, TreeModel):
            raise TypeError(
                f"DrafterTree: drafter is a {type(drafter).__name__}, which has no feed_tree; "
                "needs a model that reads trees, such as HuggingFaceModel"
            )
        super().__init__(
            drafter,
            affinity,
            draft_length=passes,
            draft_temperature=draft_temperature,
            truncate_drafts=truncate_drafts,
            dynamic_tokens=dynamic_tokens,
            full_head=full_head,
        )
        self.nodes, self.width, self.fixed_from = nodes, width, fixed_from
        self._column_of = _columns_of_tokens(affinity)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        """As `Proposer.propose`."""
        trees = [_Growing(levels) for levels in self._places(sequences, step)]
        for tree in trees:
            tree.frontier = [-1] if tree.levels > 0 else []
        link = self._first_link(step)
        levels: list[Draft] = []
        while any(tree.frontier for tree in trees):
            output = self._read(sequences, trees)
            dynamic = self._dynamic_of_rows(partial(_contexts, sequences, trees), output)
            levels.append(self._grow(trees, output.logits, dynamic, link, len(levels)))
            link = {"after": levels[-1]}
        return self._proposal(trees, levels, step)

    def _read(self, sequences: Sequence[Continuation], trees: Sequence[_Growing]) -> Output:
        """The drafter's rows after the nodes of each frontier."""
        keep = [len(tree.frontier) for tree in trees]
        with Range("drafter forward", sum(keep)):
            if not any(tree.read for tree in trees):
                return feed_unread(self.drafter, sequences, keep)
            tokens = [[tree.nodes[n].token for n in tree.frontier] for tree in trees]
            parents = []
            for tree in trees:
                place = {node: at for at, node in enumerate(tree.read)}
                parents.append([place.get(tree.nodes[n].parent, -1) for n in tree.read])
            return self.drafter.feed_tree(tokens, keep, parents)

    def _grow(
        self,
        trees: Sequence[_Growing],
        logits: Tensor,
        dynamic: dict[str, Any],
        link: dict[str, Any],
        level: int,
    ) -> Draft:
        """Give the nodes of the frontiers children, and choose the next frontiers.

        Args:
            logits, dynamic: the drafter's rows after the nodes, `[B, n, V_d]`, and their columns.
            link: what `functional.draft` is told of the step.
            level: how deep the nodes are.

        Returns:
            What was drawn, `[B, n]`.
        """
        after = link.get("after")
        first_row = 0 if after is None else after.offset + after.tokens.shape[1]
        temperature = link["temperature"] if after is None else after.temperature
        greedy = (temperature == 0)[:, None, None]
        q = functional.redistribute(
            logits, self.affinity, temperature.masked_fill(temperature == 0, 1.0), **dynamic
        )
        likeliest = q.nan_to_num(0.0).topk(min(self.width, q.shape[2]))
        fixed = (likeliest.values > 0) & (greedy | (likeliest.values >= self.fixed_from))
        fixed[:, :, -1] &= greedy[:, :, 0]  # whose place the drawn child has
        rows = self._masked(logits, dynamic, likeliest.indices.where(fixed & ~greedy, -1))
        branches = torch.arange(logits.shape[1], device=logits.device).expand(logits.shape[:2])
        with Range("draft", branches.numel()):
            drawn = functional.draft(
                affinity=self.affinity, **rows, **link, ahead=level, branches=branches
            )
        values = likeliest.values.where(fixed, 0.0).tolist()
        tokens = likeliest.indices.tolist()
        drafts = drawn.tokens.where(~greedy[:, :, 0], -1).tolist()
        for b, tree in enumerate(trees):
            first = len(tree.nodes)
            for j, node in enumerate(tree.frontier):
                pairs = zip(tokens[b][j], values[b][j], strict=True)
                tree.add(node, [pair for pair in pairs if pair[1]], drafts[b][j], first_row + j)
            grown = range(first, len(tree.nodes))
            tree.frontier = tree.best(grown, self.width) if level + 1 < tree.levels else []
            tree.read += tree.frontier
        return drawn

    def _masked(self, logits: Tensor, dynamic: dict[str, Any], taken: Tensor) -> dict[str, Any]:
        """The drafter's rows without fixed tokens `[B, n, w]`, as far as they have a column."""
        column = self._column_of[taken].where(taken >= 0, -1)
        b, j, place = (column >= 0).nonzero(as_tuple=True)
        rows = logits.clone()
        rows[b, j, column[b, j, place]] = -torch.inf
        if not dynamic:
            return {"draft_logits": rows}
        offered = dynamic["dynamic_tokens"]
        named = (offered[..., None] == taken[:, :, None]).any(3)
        return {"draft_logits": rows, **dynamic, "dynamic_tokens": offered.masked_fill(named, -1)}

    def _proposal(self, trees: Sequence[_Growing], levels: Sequence[Draft], step: Step) -> Proposal:
        """The most valuable nodes, packed, and the rows that they were drawn from."""
        chosen = [tree.best(range(len(tree.nodes)), self.nodes) for tree in trees]
        if not any(chosen):
            return Proposal.fixed([[] for _ in trees], step)
        tokens, parents, rows = [], [], []
        for tree, own in zip(trees, chosen, strict=True):
            place = {node: at for at, node in enumerate(own)}
            nodes = [tree.nodes[node] for node in own]
            tokens.append([node.token for node in nodes])
            parents.append([place.get(node.parent, -1) for node in nodes])
            rows.append([node.row for node in nodes])
        device = self.affinity.device
        packed, above, drawn_from = (padded(each, device) for each in (tokens, parents, rows))
        return Proposal(packed, Draft.join(levels), above, drawn_from)


def _contexts(
    sequences: Sequence[Continuation], trees: Sequence[_Growing], row: int
) -> list[list[int]]:
    """What each tree's node of this place in the frontier ends."""
    nodes = [tree.frontier[row] if row < len(tree.frontier) else -1 for tree in trees]
    paths = [tree.path(node) for tree, node in zip(trees, nodes, strict=True)]
    return [s.tokens + path for s, path in zip(sequences, paths, strict=True)]


def _columns_of_tokens(affinity: Affinity) -> Tensor:
    """`[V_t]`: a drafter column most of whose mass goes to the token, or -1."""
    _, offsets, drafts, weights, _, _ = affinity.by_target
    token = torch.arange(affinity.target_size, device=drafts.device)
    token = token.repeat_interleave(offsets.long().diff())
    own = weights > 0.5
    columns = torch.full((affinity.target_size,), -1, dtype=torch.int64, device=drafts.device)
    return columns.index_put((token[own],), drafts[own].long())
