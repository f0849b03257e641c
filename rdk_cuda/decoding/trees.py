"""Trees of proposed tokens for `rdk_cuda.verify_tree`: which nodes to choose, who sees whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

ACCEPTANCE = 0.7  # of a drawn token, for its value; trees change little between 0.6 and 0.8


def ancestors(parents: Tensor) -> Tensor:
    """Return `[B, N, N]` bools: whether column's node is row's, or between the root and it.

    Example:
        >>> import torch
        >>> ancestors(torch.tensor([[-1, -1, 1]])).int()[0]
        tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    batch, nodes = parents.shape
    node = torch.arange(nodes, device=parents.device).expand(batch, -1)
    # The root is placed behind all nodes, as its own parent.
    up = parents.long().where((parents >= 0) & (parents < node), nodes)
    up = torch.nn.functional.pad(up, (0, 1), value=nodes)
    seen = torch.zeros(batch, nodes, nodes + 1, dtype=torch.bool, device=parents.device)
    while bool((node < nodes).any()):
        seen.scatter_(2, node[:, :, None], True)
        node = up.gather(1, node)
    return seen[:, :, :nodes]


def depths(parents: Tensor) -> Tensor:
    """`[B, N]` int64: 0 for children of the root. A node's position is the root's, 1 and this.

    Example:
        >>> import torch
        >>> depths(torch.tensor([[-1, -1, 1, 2]]))
        tensor([[0, 0, 1, 2]])
    """
    return ancestors(parents).sum(2) - 1


def branch(parents: Sequence[int], node: int) -> list[int]:
    """List the nodes from the root's child down to a node; none for -1."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = parents[node] if parents[node] < node else -1
    return nodes[::-1]


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
class DraftTree:
    """A sequence's tree while a drafter reads it level by level.

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
        """Add children of a node: tokens with their q, and one that was drawn, or -1."""
        value = self.nodes[parent].value if parent >= 0 else 1.0
        self.nodes += [_Node(token, parent, -1, value * q) for token, q in fixed]
        if drawn >= 0:
            left = max(1 - sum(q for _, q in fixed), 0.0)
            self.nodes.append(_Node(drawn, parent, row, value * ACCEPTANCE * left))

    def best(self, among: Sequence[int], most: int) -> list[int]:
        return sorted(sorted(among, key=lambda n: (-self.nodes[n].value, n))[:most])

    def path(self, node: int) -> list[int]:
        """List the tokens from the root's child down to a node; none for -1."""
        return [self.nodes[n].token for n in branch([n.parent for n in self.nodes], node)]
