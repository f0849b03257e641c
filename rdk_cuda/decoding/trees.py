"""Trees of proposed tokens for `rdk_cuda.verify_tree`: which nodes to choose, who sees whom."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ancestors(parents: Tensor) -> Tensor:
    """`[B, N, N]` bools: whether column's node is row's node or on the way to it from the root.

    Example:
        >>> import torch
        >>> ancestors(torch.tensor([[-1, -1, 1]])).int()[0]
        tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    batch, nodes = parents.shape
    node = torch.arange(nodes, device=parents.device).expand(batch, -1)
    # What is behind all nodes is the root, its own parent.
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
    """The nodes from the root's child down to a node; none for -1. A parent is an earlier node."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = parents[node] if parents[node] < node else -1
    return nodes[::-1]
