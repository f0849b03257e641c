"""The links between the nodes of SGLang's trees."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._ops.inputs import check_tensor


def parents_of(retrieve_next_token: Tensor, retrieve_next_sibling: Tensor) -> Tensor:
    """Make `parents` for `rdk_cuda.verify_tree`, of SGLang's trees.

    There node 0 is the newest token, the root, which has no entry here: node i is our node i - 1,
    its row of `next_token_logits` is row i of `target_logits`, and its token is
    `candidates[:, i]`. Does not synchronise with the device.

    Args:
        retrieve_next_token: `[bs, draft_token_num]` integers, the first child of each node, or -1.
        retrieve_next_sibling: the same shape, the node that has the same parent and comes next, or
            -1.

    Returns:
        `[bs, draft_token_num - 1]` int32; -2 for a node that is nobody's child.

    Raises:
        ValueError: shapes or dtypes that do not fit.

    Example:
        >>> import torch  # the root has the children 1 and 2, and node 1 has 3
        >>> parents_of(torch.tensor([[1, 3, -1, -1]]), torch.tensor([[-1, 2, -1, -1]]))
        tensor([[-1, -1,  0]], dtype=torch.int32)
    """
    shape = tuple(retrieve_next_token.shape)
    name = "rdk_cuda.labs.sglang_trees.parents_of"
    needs = "integers", "bs", "draft_token_num"
    check_tensor(f"{name}: retrieve_next_token", retrieve_next_token, *needs)
    check_tensor(f"{name}: retrieve_next_sibling", retrieve_next_sibling, "integers", *shape)
    nodes = torch.arange(shape[1], device=retrieve_next_token.device).expand(shape)

    def pointing_at(links: Tensor, otherwise: Tensor) -> Tensor:
        inside = (links >= 0) & (links < shape[1])
        # Links that lead nowhere are written to one more entry, which is cut off.
        found = torch.cat([otherwise, otherwise[:, :1]], 1)
        return found.scatter(1, torch.where(inside, links, shape[1]).long(), nodes)[:, :-1]

    first_sibling = pointing_at(retrieve_next_sibling, nodes)
    for _ in range((shape[1] - 1).bit_length()):
        first_sibling = first_sibling.gather(1, first_sibling)
    owners = pointing_at(retrieve_next_token, torch.full_like(nodes, -1))
    return (owners.gather(1, first_sibling)[:, 1:] - 1).int()
