"""`rdk::verify_tree` on a batch in place of a packed list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.inputs import (
    Integers,
    Numbers,
    check_shape,
    check_tensor,
    refuse_other_than_affinity,
    row_limits,
    step_keys_and_positions,
    takes_arrays,
    temperatures,
)
from ..affinity import Affinity
from .step import Draft, Method, affinity_columns, method_number, packed, packed_rows


class VerifiedTree(NamedTuple):
    """The result of `verify_tree`.

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
    max_depth: int | None = None,
    top_k: Integers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
    allowed: Tensor | None = None,
    draft: Draft | Sequence[Draft] | None = None,
    draft_rows: Tensor | None = None,
    affinity: Affinity | None = None,
    method: Method = "token",
) -> VerifiedTree:
    """Walk down a tree of proposed tokens, so that the output is the target's.

    DESIGN section 2, "Trees". Fixed nodes are such as a drafter's likeliest tokens (EAGLE-2,
    Medusa, n-grams): a token is drawn from the target's distribution, and if a child has it, the
    walk goes on there. One child of each node may have been drawn: it is accepted or replaced as
    `verify` would, and a replacement may lead to a fixed child.
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
        seeds, positions: as in `draft`; positions are those of the tokens after the root.
        max_depth: the most nodes that are accepted; N if not given. It is the width of the result.
        top_k, top_p, min_p: of the target, as in `verify`.
        allowed: `[B, N + 1, ceil(V_t / 32)]` int32, as in `verify`.
        draft: what `draft` returned for the drawn nodes, level by level with `ahead=` and
            `branches=`, as one object or in order; its `tokens` are not looked at. It brings the
            step's key and positions, so seeds and positions are left out. For more accepted nodes
            its logits leave out (`-inf`) the tokens of the fixed siblings.
        draft_rows: `[B, N]` integers: which of the draft's rows each node was drawn from, -1 for a
            fixed one. Of drawn children of one node the first counts.
        affinity: the one that was drafted with.
        method: of the drawn nodes that follow each other, as in `verify`. By block, more rows of
            the target are read.

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

        A fixed child, 4, and one drawn from the drafter without it:

        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(9))
        >>> logits = torch.zeros(1, 9).index_fill(1, torch.tensor(4), -torch.inf)
        >>> drawn = rdk_cuda.draft(logits, affinity, seeds=0, positions=12)
        >>> tokens, accepted, _ = rdk_cuda.verify_tree(
        ...     target[:, :3], torch.tensor([[4, int(drawn.tokens)]]), torch.tensor([-1, -1]),
        ...     draft=drawn, draft_rows=torch.tensor([[-1, 0]]), affinity=affinity)
    """
    name, device = "rdk_cuda.verify_tree", target_logits.device
    check_shape(f"{name}: tokens", tokens, "B", "N")
    batch, nodes = tokens.shape
    check_shape(f"{name}: target_logits", target_logits, batch, nodes + 1, "V_t")
    each = (nodes,) if parents.dim() == 1 else (batch, nodes)  # one shape for all
    check_tensor(f"{name}: parents", parents, "integers", *each)
    if allowed is not None:
        check_shape(f"{name}: allowed", allowed, batch, nodes + 1, "ceil(V_t / 32)")
    drafter: dict[str, Tensor | None] = {}
    if draft is None:
        if draft_rows is not None or affinity is not None:
            raise ValueError(f"{name}: got draft_rows or affinity without draft; pass all or none")
        keys, first = step_keys_and_positions(name, seeds, positions, batch, device)
    else:
        if seeds is not None or positions is not None:
            raise ValueError(
                f"{name}: seeds and positions belong to the draft; leave them out with draft="
            )
        joined = draft if isinstance(draft, Draft) else Draft.join(draft)
        keys, first = joined.step_keys, joined.positions
        drafter = _drafter(name, joined, draft_rows, affinity, (batch, nodes))
    verified = operators.verify_tree(
        target_logits.flatten(0, 1),
        tokens.flatten().contiguous(),
        # Indices beyond int32 are invalid parents.
        parents.clamp(-2, nodes).int().expand(batch, nodes).flatten().contiguous(),
        torch.arange(batch + 1, dtype=torch.int32, device=device) * nodes,
        temperatures(name, temperature, (batch,), device),
        keys,
        first,
        nodes if max_depth is None else max_depth,
        *row_limits(name, top_k, top_p, min_p, (batch,), device),
        None if allowed is None else allowed.flatten(0, 1),
        **drafter,
        method=method_number(name, method),
    )
    return VerifiedTree(*verified)


def _drafter(
    name: str, draft: Draft, rows: Tensor | None, affinity: Affinity | None, shape: tuple[int, int]
) -> dict[str, Tensor | None]:
    if draft.offset != 0 or draft.tokens.shape[0] != shape[0]:
        raise ValueError(
            f"{name}: draft has {draft.tokens.shape[0]} sequences and lacks the first "
            f"{draft.offset} rows of its step; needs all of them, of {shape[0]} sequences"
        )
    if draft.logits is None:  # nothing was drawn
        return {}
    if rows is None or affinity is None:
        raise ValueError(f"{name}: got draft without draft_rows or affinity; pass all three")
    refuse_other_than_affinity(name, affinity)
    return {
        "draft_logits": draft.logits.flatten(0, 1),
        "draft_stats": packed(draft.stats),
        "draft_rows": packed_rows(name, rows, shape, draft.logits.shape[1]),
        "draft_temperature": draft.temperature,
        **affinity_columns(affinity),
        "dynamic_tokens": packed(draft.dynamic_tokens),
        "dynamic_logits": packed(draft.dynamic_logits),
    }
