"""A proposer of mixed trees: at each node fixed tokens, and one that is drawn from what is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import functional
from .._ops.inputs import whole_number
from ..affinity import Affinity
from ..functional import Draft
from ..ranges import Range
from .generation import Continuation
from .models import Output, TreeModel, feed_unread
from .proposal import Proposal, Step, padded
from .proposers import DrafterChain
from .trees import DraftTree

FIXED_FROM = 0.1  # the least q of a fixed token above temperature 0
_ABOVE_0 = float(np.nextafter(np.float32(0), np.float32(1)))


class DrafterTree(DrafterChain):
    """A tree of a drafter's likeliest tokens, and of tokens that are drawn from it.

    DESIGN section 2, "Trees". Level by level the drafter reads the most valuable nodes. The
    children of a node are fixed tokens, those with at least a certain q, and one that is drawn from
    q without them. Of all nodes the most valuable are proposed. A node's value is the estimated
    probability that it is accepted. It says nothing of the token that is drawn, and only nodes
    worth no more than itself make room for what follows it, so none is dropped for what it is. At
    temperature 0 nothing is drawn.

    Args:
        drafter: reads trees.
        affinity: V_d to V_t.
        nodes: N, the most that are proposed.
        passes: of the drafter in a step, and so the most levels of a tree.
        width: the most nodes that a pass reads, and the most children of a node.
        options: draft_temperature, truncate_drafts, dynamic_tokens and full_head of `DrafterChain`.

    Raises:
        TypeError: a drafter that reads no trees.
        ValueError: no nodes, passes or width, and what a `DrafterChain` refuses.
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
        **options: Any,
    ) -> None:
        if not isinstance(drafter, TreeModel):
            raise TypeError(
                f"DrafterTree: drafter is a {type(drafter).__name__}, which has no feed_tree; "
                "needs a model that reads trees, such as HuggingFaceModel"
            )
        counts = {"nodes": nodes, "passes": passes, "width": width}
        for name, count in counts.items():
            whole_number("DrafterTree", name, count, 1)
        super().__init__(drafter, affinity, draft_length=passes, **options)
        self.nodes, self.width = nodes, width
        self._top_tokens, self._shares = _likeliest_tokens(affinity)
        self._branches: dict[torch.Size, Tensor] = {}  # of a level, by its shape

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        trees = [DraftTree(levels) for levels in self._places(sequences, step)]
        for tree in trees:
            tree.frontier = [-1] if tree.levels > 0 else []
        link, levels, level = self.first_link(step), list[Draft](), 0
        temperature = link["temperature"]
        scale = temperature.masked_fill(temperature == 0, 1.0)[:, None, None]
        heat = temperature.tolist()
        greedy = np.array(heat)[:, None, None] == 0
        least = np.where(greedy, _ABOVE_0, FIXED_FROM).astype(np.float32)
        least = least.repeat(self.width, 2)
        least[:, :, -1:][~greedy] = np.inf  # whose place the drawn child has
        draws = any(own > 0 for own in heat)
        while any(tree.frontier for tree in trees):
            output = self._read(sequences, trees)
            dynamic = self._dynamic_of_rows(sequences, partial(_paths, trees), output)
            tokens, q, rows = self._fixed(output.logits, dynamic, scale, least, greedy)
            drafts = list[list[int]]()
            first_row = sum(each.tokens.shape[1] for each in levels)
            if draws:
                levels.append(self._draw(rows, link, level))
                link = {"after": levels[-1]}
                drafts = levels[-1].tokens.tolist()
            level += 1
            for b, tree in enumerate(trees):
                first = len(tree.nodes)
                for j, node in enumerate(tree.frontier):
                    pairs = zip(tokens[b][j], q[b][j], strict=True)
                    drawn = drafts[b][j] if heat[b] > 0 else -1
                    tree.add(node, [pair for pair in pairs if pair[1]], drawn, first_row + j)
                grown = range(first, len(tree.nodes))
                tree.frontier = tree.best(grown, self.width) if level < tree.levels else []
                tree.read += tree.frontier
        return self._proposal(trees, levels, step)

    def _read(self, sequences: Sequence[Continuation], trees: Sequence[DraftTree]) -> Output:
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

    def _fixed(
        self,
        logits: Tensor,
        dynamic: dict[str, Any],
        scale: Tensor,
        least: NDArray[np.float32],
        greedy: NDArray[np.bool_],
    ) -> tuple[list[list[list[int]]], list[list[list[float]]], dict[str, Any]]:
        """The fixed children of each row `[B, n, V_d]`, chosen on the host.

        Args:
            logits, dynamic: the rows.
            scale: `[B, 1, 1]`, their temperature, 1 in place of 0.
            least: `[B, 1, w]`, the least q of the likeliest children. greedy: `[B, 1, 1]`.

        Returns:
            `[B, n, w]` tokens, their q, 0 for one that is not a child, and the rows without them.
        """
        z, size, rows = logits.detach(), logits.shape[2], {"draft_logits": logits, **dynamic}
        if dynamic:
            offered = dynamic["dynamic_tokens"]
            there = (offered >= 0) & (offered < self.affinity.target_size)
            z = torch.cat([z, dynamic["dynamic_logits"].where(there, -torch.inf)], 2)
        z = z.float() / scale
        if (bias := self.affinity.by_target[0]) is not None:
            z[:, :, : len(bias)] += bias
        best = z.softmax(2).topk(min(self.width, z.shape[2]))
        q, columns = best.values.cpu().numpy(), best.indices.cpu().numpy()
        own = columns.clip(max=size - 1) if dynamic else columns
        tokens, shares = self._top_tokens[own], self._shares[own]
        if dynamic:
            behind = columns >= size
            b, j, place = np.nonzero(behind)
            tokens[behind] = offered.cpu().numpy()[b, j, columns[behind] - size]
            shares[behind] = 1
        q = q * shares
        fixed = q >= least[:, :, -q.shape[2] :]
        # A column that may well give another token stays, and nothing is drawn at temperature 0.
        b, j, place = np.nonzero(fixed & (shares > 0.5) & ~greedy)
        row, column = b * logits.shape[1] + j, columns[b, j, place]
        less = column < size
        rows["draft_logits"] = _filled(logits, row[less], column[less], -torch.inf)
        if dynamic:
            rows["dynamic_tokens"] = _filled(offered, row[~less], column[~less] - size, -1)
        q[~fixed] = 0
        return tokens.tolist(), q.tolist(), rows

    def _draw(self, rows: dict[str, Any], link: dict[str, Any], level: int) -> Draft:
        """A child from each row, `[B, n]`."""
        shape, device = rows["draft_logits"].shape[:2], rows["draft_logits"].device
        branches = self._branches.get(shape)
        if branches is None:
            branches = torch.arange(shape[1], dtype=torch.int32, device=device)
            branches = self._branches[shape] = branches.expand(shape).contiguous()
        with Range("draft", shape.numel()):
            return functional.draft(
                affinity=self.affinity, **rows, **link, ahead=level, branches=branches
            )

    def _proposal(
        self, trees: Sequence[DraftTree], levels: Sequence[Draft], step: Step
    ) -> Proposal:
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
        packed, above = padded(tokens, device), padded(parents, device)
        if not levels:
            return Proposal.tree(packed, above, step)
        return Proposal(packed, Draft.join(levels), above, padded(rows, device))


def _paths(trees: Sequence[DraftTree], row: int) -> list[list[int]]:
    nodes = [tree.frontier[row] if row < len(tree.frontier) else -1 for tree in trees]
    return [tree.path(node) for tree, node in zip(trees, nodes, strict=True)]


def _filled(values: Tensor, row: Any, column: Any, value: float) -> Tensor:
    """`[B, n, C]` with a value in columns of some of its `B n` rows."""
    if not len(row):
        return values
    at = torch.from_numpy(row * values.shape[2] + column).to(values.device)
    return values.reshape(-1).index_fill(0, at, value).view(values.shape)


def _likeliest_tokens(affinity: Affinity) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Of each drafter column the likeliest token, and its share of the column's mass, `[V_d]`."""
    _, offsets, drafts, weights, _, _ = affinity.by_target
    token = torch.arange(affinity.target_size, device=drafts.device)
    token = token.repeat_interleave(offsets.long().diff())
    own = affinity.row_top[drafts.long()] == token
    shares = weights.new_zeros(affinity.draft_size)
    shares = shares.index_put((drafts[own].long(),), weights[own])
    return affinity.row_top.cpu().numpy(), shares.detach().cpu().numpy()
