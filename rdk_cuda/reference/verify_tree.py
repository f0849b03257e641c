"""Trees with fixed children in plain PyTorch, to be read next to section 2 of DESIGN."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .operators import owned, target_distribution
from .random import BONUS, Trace, draw, philox
from .truncation import Limits


def verify_tree(
    target_logits: Tensor,
    tree_token_ids: Tensor,
    parents: Tensor,
    tree_offsets: Tensor,
    temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    max_depth: int,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    allowed: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens ``[B, max_depth + 1]``, accepted nodes ``[B]``, and which, ``[B, max_depth]``."""
    batch = step_keys.numel()
    trace = Trace() if trace is None else trace
    tokens = torch.full((batch, max_depth + 1), -1, dtype=torch.int64, device="cpu")
    path = torch.full((batch, max_depth), -1, dtype=torch.int32, device="cpu")
    num_accepted = torch.zeros(batch, dtype=torch.int32, device="cpu")
    for b in range(batch):
        first, count = owned(tree_offsets[b : b + 2].tolist(), tree_token_ids.numel())
        # The first child of a node that has a token; what is no child of an earlier node is none.
        children: dict[tuple[int, int], int] = {}
        for node in range(count):
            parent, token = int(parents[first + node]), int(tree_token_ids[first + node])
            if -1 <= parent < node:
                children.setdefault((parent, token), node)
        node, limits = -1, Limits.of(top_k, top_p, min_p, b)
        for depth in range(max_depth + 1):
            row = first + b + 1 + node
            words = None if allowed is None else allowed[row]
            p = target_distribution(target_logits[row], float(temperature[b]), limits, words, dtype)
            if p is None:
                break
            random = philox(int(step_keys[b]), int(positions[b]) + depth, BONUS, 0)
            token = draw(p, random, partial(trace.add, b, "node"))
            tokens[b, depth] = token
            node = children.get((node, token), -1)
            if depth == max_depth or node < 0:
                break
            path[b, depth] = node
            num_accepted[b] += 1
    return tokens, num_accepted, path
