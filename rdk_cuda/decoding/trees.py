"""Trees of proposed tokens for `rdk_cuda.verify_tree`: which nodes to choose, who sees whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Tree", "ancestors", "best_first", "branch", "depths"]


class Tree(NamedTuple):
    """Proposed tokens.

    Attributes:
        tokens: `[B, N]` int64 target ids, -1 for a node that is not used.
        parents: `[B, N]` int64, which earlier node each is a child of, or -1 for the root.
    """

    tokens: Tensor
    parents: Tensor


def best_first(
    expand: Callable[[Tree], Tensor], batch: int, nodes: int, device: torch.device | str = "cpu"
) -> Tree:
    """The nodes of the largest probability that the drafter gives to them and all before them.

    As EAGLE-2 chooses them (arXiv:2406.16858), but one at a time: a child never has a larger
    probability than its parent, so the first n of them are the best tree of n nodes. Under the
    drafter's distribution no tree of as many nodes has more of them accepted on average.

    Args:
        expand: given the tree so far, the drafter's probabilities `[B, V_t]` of what follows its
            last node, or of what follows the root if it has none, over target ids: as
            `rdk_cuda.redistribute` gives them, so that virtual and dynamic tokens are children too.
        batch, nodes: B and N.
        device: of the probabilities, and of the tree.

    Example:
        >>> import torch  # a drafter that always says the same
        >>> tree = best_first(lambda tree: torch.tensor([[0.7, 0.3, 0.0]]), batch=1, nodes=4)
        >>> tree.tokens, tree.parents
        (tensor([[0, 0, 0, 1]]), tensor([[-1,  0,  1, -1]]))
    """
    empty = torch.empty(batch, 0, dtype=torch.int64, device=device)
    tree = Tree(empty, empty)
    scores, tokens, parents = empty.float(), empty, empty  # of the children that may be nodes
    newest = torch.zeros(batch, 1, dtype=torch.float32, device=device)  # ln of its probability
    for node in range(nodes):
        probs = expand(tree)
        likeliest = probs.topk(min(nodes - node, probs.shape[1]))
        scores = torch.cat([scores, newest + likeliest.values.log()], 1)
        tokens = torch.cat([tokens, likeliest.indices], 1)
        parents = torch.cat([parents, torch.full_like(likeliest.indices, node - 1)], 1)
        newest, best = scores.max(1, keepdim=True)
        token = tokens.gather(1, best).where(newest > -torch.inf, -1)
        tree = Tree(
            torch.cat([tree.tokens, token], 1),
            torch.cat([tree.parents, parents.gather(1, best)], 1),
        )
        scores = scores.scatter(1, best, -torch.inf)
    return tree


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
    seen = torch.eye(nodes, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    for node in range(1, nodes):
        parent = parents[:, node]
        rows = seen.gather(1, parent.clamp(min=0).long()[:, None, None].expand(-1, 1, nodes))
        seen[:, node] |= rows[:, 0] & (parent >= 0)[:, None]
    return seen


def depths(parents: Tensor) -> Tensor:
    """`[B, N]` int64: 0 for children of the root. A node's position is the root's, 1 and this."""
    return ancestors(parents).sum(2) - 1


def branch(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child down to a node; none for -1. A parent is an earlier node."""
    nodes: list[int] = []
    while node >= 0:
        nodes.append(node)
        node = parents[node] if parents[node] < node else -1
    return nodes[::-1]
