"""`rdk::verify_tree` on a batch in place of a packed list."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.inputs import (
    Integers,
    Numbers,
    row_limits,
    step_keys_and_positions,
    takes_arrays,
    temperatures,
)


class VerifiedTree(NamedTuple):
    """What `verify_tree` decided.

    Attributes:
        tokens: `[B, max_depth + 1]` int64, the tokens of the accepted nodes, then one more drawn
            token, then -1.
        num_accepted: `[B]` int32.
        path: `[B, max_depth]` int32, the accepted nodes from the root down, then -1: whose entries
            of a key-value cache to keep.
    """

    tokens: Tensor
    num_accepted: Tensor
    path: Tensor


@takes_arrays
def verify_tree(
    target_logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    temperature: Numbers = 1.0,
    *,
    seeds: Integers | None = None,
    positions: Integers | None = None,
    generator: torch.Generator | None = None,
    max_depth: int | None = None,
    top_k: Integers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
    allowed: Tensor | None = None,
) -> VerifiedTree:
    """Walk down a tree of proposed tokens, so that the output is the target's.

    DESIGN section 2, "Trees with fixed children". At each node a token is drawn from the target's
    distribution, and if a child has it, the walk goes on there. The tree may not have been sampled:
    its tokens are fixed before, such as a drafter's likeliest (EAGLE-2, Medusa, n-grams).
    For packed batches call `torch.ops.rdk.verify_tree` itself.

    Args:
        target_logits: `[B, N + 1, V_t]` float32, float16 or bfloat16. Row 0 is what follows the
            newest decided token, the root; row 1 + n is what follows node n on its branch, from a
            forward pass with a tree-attention mask.
        tokens: `[B, N]` int64 or int32 target ids; -1 for a node that is not used. Of children of
            one node with the same token the first counts.
        parents: `[B, N]` or, for one shape for all, `[N]` integers: which node each is a child of,
            always an earlier one, or -1 for the root.
        temperature: the target's, one for all or `[B]`; at least 0, and 0 is greedy.
        seeds, positions, generator: as in `draft`; positions are those of the tokens after the
            root.
        max_depth: the most nodes that are accepted; N if not given. It is the width of the result.
        top_k, top_p, min_p: of the target, as in `verify`.
        allowed: `[B, N + 1, ceil(V_t / 32)]` int32, as in `verify`.

    Returns:
        `VerifiedTree(tokens [B, max_depth + 1], num_accepted [B], path [B, max_depth])`.

    Example:
        >>> import torch, rdk_cuda
        >>> target = torch.full((1, 4, 9), -50.0)
        >>> target[0, [0, 1, 2, 3], [5, 0, 7, 3]] = 0.0  # 5 follows the root, 7 node 1, 3 node 2
        >>> rdk_cuda.verify_tree(
        ...     target, torch.tensor([[4, 5, 7]]), torch.tensor([-1, -1, 1]), seeds=0, positions=12,
        ...     max_depth=2)
        VerifiedTree(tokens=tensor([[5, 7, 3]]), num_accepted=tensor([2], dtype=torch.int32), \
path=tensor([[1, 2]], dtype=torch.int32))
    """
    name, device = "rdk_cuda.verify_tree", target_logits.device
    if tokens.dim() != 2:
        raise ValueError(f"{name}: tokens has shape {list(tokens.shape)}; needs [B, N]")
    batch, nodes = tokens.shape
    if target_logits.dim() != 3 or target_logits.shape[:2] != (batch, nodes + 1):
        raise ValueError(
            f"{name}: target_logits has shape {list(target_logits.shape)}; needs [{batch}, "
            f"{nodes + 1}, V_t]: B = {batch} sequences, a row for the root and N = {nodes} nodes"
        )
    if tuple(parents.shape) not in ((batch, nodes), (nodes,)) or parents.is_floating_point():
        raise ValueError(
            f"{name}: parents is {parents.dtype} of shape {list(parents.shape)}; needs integers of "
            f"shape [{batch}, {nodes}], or [{nodes}] for one shape for all"
        )
    if allowed is not None and allowed.shape[:-1] != (batch, nodes + 1):
        raise ValueError(
            f"{name}: allowed has shape {list(allowed.shape)}; needs [{batch}, {nodes + 1}, "
            "ceil(V_t / 32)], rows parallel to those of target_logits"
        )
    keys, first = step_keys_and_positions(name, seeds, positions, generator, batch, device)
    verified = operators.verify_tree(
        target_logits.flatten(0, 1),
        tokens.flatten().contiguous(),
        # What does not fit into 32 bits is nobody's child, and stays so.
        parents.clamp(-2, nodes).int().expand(batch, nodes).flatten().contiguous(),
        torch.arange(batch + 1, dtype=torch.int32, device=device) * nodes,
        temperatures(name, temperature, (batch,), device),
        keys,
        first,
        nodes if max_depth is None else max_depth,
        *row_limits(name, top_k, top_p, min_p, (batch,), device),
        None if allowed is None else allowed.flatten(0, 1),
    )
    return VerifiedTree(*verified)
