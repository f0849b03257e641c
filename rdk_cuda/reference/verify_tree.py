"""Trees in plain PyTorch, to be read next to section 2 of DESIGN, "Trees"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from .judging import SequenceStep, decide
from .operators import DrafterRows, owned, target_distribution
from .random import Trace
from .truncation import Limits


class Tree:
    """One sequence's nodes, the children of each node by its number, -1 the root's.

    Nodes whose parent is no earlier node are left out. `rows` are the drafter's, -1 of fixed nodes.
    """

    def __init__(self, tokens: list[int], parents: list[int], rows: list[int]) -> None:
        self.tokens, self.rows = tokens, rows
        self.children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            if -1 <= parent < node:
                self.children.setdefault(parent, []).append(node)

    def drawn(self, node: int, most: int) -> list[int]:
        """List the drawn nodes that follow it: at each the first drawn child in the list."""
        chain: list[int] = []
        while len(chain) < most:
            last = chain[-1] if chain else node
            drawn = [child for child in self.children.get(last, []) if self.rows[child] != -1]
            found = [child for child in drawn if self.tokens[child] != -1]
            if not found:
                break
            chain.append(found[0])
        return chain

    def fixed(self, node: int, token: int) -> int:
        """Find the first fixed child with this token, -1 if there is none."""
        fixed = (child for child in self.children.get(node, []) if self.rows[child] == -1)
        return next((child for child in fixed if self.tokens[child] == token), -1)


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
    draft_logits: Tensor | None = None,
    draft_stats: Tensor | None = None,
    draft_rows: Tensor | None = None,
    draft_temperature: Tensor | None = None,
    bias: Tensor | None = None,
    col_offsets: Tensor | None = None,
    col_drafts: Tensor | None = None,
    col_weights: Tensor | None = None,
    spread: Tensor | None = None,
    prior: Tensor | None = None,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    method: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Decide tokens ``[B, max_depth + 1]``, accepted nodes ``[B]``, which ``[B, max_depth]``."""
    batch = step_keys.numel()
    trace = Trace() if trace is None else trace
    drafter = None
    if draft_logits is not None:
        columns = (col_offsets, col_drafts, col_weights, spread, prior)
        given = tuple(column for column in columns if column is not None)
        dynamic = (dynamic_tokens, dynamic_logits)
        drafter = DrafterRows(draft_logits, draft_stats, bias, given, dynamic)
    tokens = torch.full((batch, max_depth + 1), -1, dtype=torch.int64, device="cpu")
    path = torch.full((batch, max_depth), -1, dtype=torch.int32, device="cpu")
    num_accepted = torch.zeros(batch, dtype=torch.int32, device="cpu")

    for b in range(batch):
        first, count = owned(tree_offsets[b : b + 2].tolist(), tree_token_ids.numel())
        own, t = slice(first, first + count), float(temperature[b])
        # At temperature 0 it does not matter how a node came about.
        rows, draft_t = [-1] * count, 0.0
        if draft_rows is not None and draft_temperature is not None and t != 0:
            rows, draft_t = draft_rows[own].tolist(), float(draft_temperature[b])
        tree = Tree(tree_token_ids[own].tolist(), parents[own].tolist(), rows)
        limits = Limits.of(top_k, top_p, min_p, b)

        def p_after(
            node: int, row: int = first + b + 1, t: float = t, limits: Limits = limits
        ) -> Tensor | None:
            words = None if allowed is None else allowed[row + node]
            return target_distribution(target_logits[row + node], t, limits, words, dtype)

        def q_of(node: int, x: int, tree: Tree = tree, t: float = draft_t) -> Tensor | None:
            return None if drafter is None else drafter.q(tree.rows[node], t, x, dtype)

        put, nodes = _walk(
            tree,
            max_depth,
            SequenceStep(
                [],
                cache(p_after),
                q_of,
                int(step_keys[b]),
                int(positions[b]),
                partial(trace.add, b),
            ),
            partial(decide, method=method, greedy=t == 0),
        )
        num_accepted[b] = len(nodes)
        tokens[b, : len(put)] = torch.tensor(put, dtype=torch.int64, device="cpu")
        path[b, : len(nodes)] = torch.tensor(nodes, dtype=torch.int32, device="cpu")
    return tokens, num_accepted, path


def _walk(
    tree: Tree, max_depth: int, step: SequenceStep, judge: Callable[[SequenceStep], list[int]]
) -> tuple[list[int], list[int]]:
    """List the tokens that are put out, -1 at the end where there is none, and the accepted nodes.

    Args:
        step: what is known of the sequence; by node, in place of the draft.
    """
    put: list[int] = []
    nodes: list[int] = []
    for nesting in range(max_depth + 1):
        begin = nodes[-1] if nodes else -1
        chain = tree.drawn(begin, max_depth - len(nodes))
        decided = judge(
            replace(
                step,
                drafts=[tree.tokens[node] for node in chain],
                target=_at([begin, *chain], step.target),
                draft=_at(chain, step.draft),
                position=step.position + len(nodes),
                nesting=nesting,
            )
        )
        put += decided
        nodes += chain[: len(decided) - 1]
        child = tree.fixed(nodes[-1] if nodes else -1, decided[-1])
        if child == -1 or decided[-1] == -1 or len(nodes) == max_depth:
            break
        nodes.append(child)
    return put, nodes


def _at(nodes: list[int], of_node: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Return the same of the j-th of these nodes."""
    return lambda j, *rest: of_node(nodes[j], *rest)
