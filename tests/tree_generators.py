"""Random trees of proposed tokens, of fixed nodes or of drawn ones, too.

Everything is drawn from a seed, as in `tests/generators.py`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.generators import Batch, Drafted


@dataclass
class Trees(Drafted):
    """The arguments of `rdk::verify_tree`, in its order but for the affinity."""

    target_logits: Tensor
    tree_token_ids: Tensor
    parents: Tensor
    tree_offsets: Tensor
    temperature: Tensor
    step_keys: Tensor
    positions: Tensor
    max_depth: int
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    allowed: Tensor | None = None
    draft_logits: Tensor | None = None
    draft_stats: Tensor | None = None
    draft_rows: Tensor | None = None
    draft_temperature: Tensor | None = None
    affinity: Affinity | None = None
    dynamic_tokens: Tensor | None = None
    dynamic_logits: Tensor | None = None
    method: int = 0

    def arguments(self) -> tuple[object, ...]:
        """What `torch.ops.rdk.verify_tree` and `reference.verify_tree` are called with."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        if self.affinity is None:
            nothing = (None,) * 12
            return (*fields[:12], *nothing, self.method) if self.method else tuple(fields[:12])
        return (*fields[:16], *self.affinity.by_target, *fields[17:])


def trees(
    sizes: list[int],
    target_size: int,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    forbidden: float = 0.0,
) -> Trees:
    """A packed batch of random trees, whose tokens are mostly the likeliest ones at their parents.

    So the walk goes down a few nodes. Some nodes have no children, some siblings the same token.
    """
    random = generators.generator(seed)
    nodes, batch = sum(sizes), len(sizes)
    target = generators.logits(
        nodes + batch, target_size, seed + 1, dtype=dtype, scale=3.0, forbidden=forbidden
    )
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    parents = torch.empty(nodes, dtype=torch.int32)
    tokens = torch.empty(nodes, dtype=torch.int64)
    likeliest = target.float().topk(min(target_size, 2)).indices
    target.scatter_add_(1, likeliest, torch.full_like(likeliest, 3).to(dtype))
    for b, size in enumerate(sizes):
        for node in range(size):
            parent = max(-1, (node - 1) // 2 - int(torch.randint(0, 2, (), generator=random)))
            row = likeliest[int(offsets[b]) + b + 1 + parent]
            place = int(offsets[b]) + node
            parents[place] = parent
            tokens[place] = row[torch.randint(0, row.numel(), (), generator=random)]
    return Trees(
        target,
        tokens,
        parents,
        offsets.to(torch.int32),
        torch.full((batch,), temperature),
        torch.randint(-(2**63), 2**63 - 1, (batch,), generator=random),
        torch.randint(0, 2**33, (batch,), generator=random),
        max(sizes, default=0),
    )


def mixed_trees(
    affinity: Affinity,
    sizes: list[int],
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    draft_temperature: float = 1.0,
    dynamic: int = 0,
    forbidden: float = 0.0,
    drawn: float = 0.5,
    bad: float = 0.0,
) -> Trees:
    """A packed batch of trees of any shape; about a fraction ``drawn`` of their nodes are drawn.

    Fixed ones are likely tokens. A drawn one is drawn by the reference from the drafter's row of
    its parent without the fixed siblings before it, from a branch of its own. Rows are in an order
    of their own, and a fraction ``bad`` of parents, tokens and rows makes no sense.
    """
    random, nodes, size = generators.generator(seed), sum(sizes), affinity.target_size
    lengths = torch.tensor(sizes, dtype=torch.int64)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    sequence = torch.repeat_interleave(torch.arange(len(sizes)), lengths)
    node = torch.arange(nodes) - offsets[sequence]
    # Long chains, bushes and stars, by sequence.
    reach = (node + 1) ** torch.rand(len(sizes), generator=random)[sequence].mul(1.4).clamp(max=1)
    parents = node - 1 - (torch.rand(nodes, generator=random) * reach).long()
    above = offsets[sequence] + sequence + 1 + parents  # the row that follows the parent
    rows = nodes + len(sizes)
    drafter = generators.logits(
        rows, affinity.draft_size, seed + 1, dtype=dtype, scale=4.0, forbidden=forbidden
    )
    usable = (affinity.bias > -math.inf).nonzero().flatten()
    drafter[:, usable[0]] = drafter[:, usable[0]].nan_to_num(neginf=0.0)
    tokens = values = None
    if dynamic:
        tokens = generators.dynamic_tokens(rows, dynamic, size, seed + 2)
        values = generators.logits(rows, dynamic, seed + 3, dtype=dtype, scale=4.0)
    hot = torch.full((rows,), draft_temperature)
    q = reference.redistribute(
        drafter, hot, *affinity.by_target, affinity.row_top, tokens, values
    ).nan_to_num()
    target = generators.logits(rows, size, seed + 4, scale=0.5, forbidden=forbidden)
    target += 1.1 * q.clamp(min=0.003 / size).log()
    likeliest = q.topk(min(size, 3)).indices
    choice = torch.randint(0, likeliest.shape[1], (nodes,), generator=random)
    ids = likeliest[above, choice]
    is_drawn = torch.rand(nodes, generator=random) < drawn
    drafter, hidden = drafter[above], affinity.row_top.long().clamp(min=-1)
    if tokens is not None and values is not None:
        tokens, values = tokens[above].clone(), values[above]
    step_keys = torch.randint(-(2**63), 2**63 - 1, (len(sizes),), generator=random)
    positions = torch.randint(0, 2**33, (len(sizes),), generator=random)
    depth = torch.zeros(nodes, dtype=torch.int64)
    for n in range(nodes):
        begin, parent = int(offsets[sequence[n]]), int(parents[n])
        depth[n] = 0 if parent < 0 else depth[begin + parent] + 1
        siblings = (parents[begin:n] == parent) & ~is_drawn[begin:n]
        for token in ids[begin:n][siblings].tolist() if is_drawn[n] else ():
            drafter[n, hidden == token] = -math.inf
            if tokens is not None:
                tokens[n, tokens[n] == token] = -1
    drafted, _ = reference.draft(
        drafter,
        torch.full((nodes,), draft_temperature),
        step_keys[sequence],
        positions[sequence] + depth,
        *affinity.by_draft,
        tokens,
        values,
        branches=node.int(),
    )
    ids = torch.where(is_drawn, drafted, ids)
    order = torch.randperm(nodes, generator=random)
    place = torch.empty_like(order)
    place[order] = torch.arange(nodes)
    draft_rows = torch.where(is_drawn, place, -1)
    senseless = torch.rand(3, nodes, generator=random) < bad
    anything = torch.tensor([-2, size, 2**31 - 1, -(2**31), 0])
    wrong = anything[torch.randint(0, 5, (3, nodes), generator=random)]
    return Trees(
        (target * (temperature or 1.0)).to(dtype),
        torch.where(senseless[0], wrong[0], ids),
        torch.where(senseless[1], wrong[1], parents).int(),
        offsets.to(torch.int32),
        torch.full((len(sizes),), temperature),
        step_keys,
        positions,
        max(sizes, default=0),
        draft_logits=drafter[order],
        draft_rows=torch.where(senseless[2], wrong[2], draft_rows).int(),
        draft_temperature=torch.full((len(sizes),), draft_temperature),
        affinity=affinity,
        dynamic_tokens=None if tokens is None else tokens[order],
        dynamic_logits=None if values is None else values[order],
    )


def chains(batch: Batch, *, twice: bool = False) -> Trees:
    """The drafts of each sequence, all drawn, as trees.

    Twice: behind each of them is a fixed node with another token: those that replace drafts.
    """
    offsets, lengths = batch.draft_offsets, batch.draft_offsets.diff()
    target, ids = batch.target_logits, batch.draft_token_ids
    rows = torch.arange(ids.numel(), dtype=torch.int32)
    parents = rows - torch.repeat_interleave(offsets[:-1], lengths) - 1
    if twice:
        sequences = torch.arange(batch.size)
        judged = target[rows + torch.repeat_interleave(sequences, lengths)]
        begins = offsets[:-1].long() + sequences
        first = torch.isin(torch.arange(target.shape[0]), begins)
        target = target.repeat_interleave(torch.where(first, 1, 2), 0)
        ids = torch.stack([ids, judged.argmax(1)], 1).flatten()
        parents = torch.where(parents < 0, -1, 2 * parents).repeat_interleave(2).int()
        rows = torch.stack([rows, torch.full_like(rows, -1)], 1).flatten()
    limits = batch.top_k, batch.top_p, batch.min_p, batch.allowed
    return Trees(
        *(target, ids, parents, offsets * (1 + twice), batch.target_temperature, batch.step_keys),
        *(batch.positions, batch.max_draft, *limits, batch.draft_logits, batch.draft_stats, rows),
        *(batch.draft_temperature, batch.affinity, batch.dynamic_tokens, batch.dynamic_logits),
        batch.method,
    )
