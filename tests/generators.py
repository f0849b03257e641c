"""Random inputs for the operators: affinities of every kind, logits, packed batches.

Everything is drawn from a seed, so that a failure can be repeated.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda._ops.contract import LIMITS, LOGITS, OPERATORS, Argument, Number, shape_of
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary

AFFINITIES = (
    "identity",
    "intersection",
    "first-order",
    "virtual",
    "mixed-0",
    "mixed-1",
    "mixed-2",
    "mixed-3",
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def zipf(size: int) -> Tensor:
    """Mean probabilities like those of a language, float64 ``[size]``."""
    weights = 1 / torch.arange(1, size + 1, dtype=torch.float64)
    return weights / weights.sum()


def affinity(kind: str, target_size: int, seed: int = 0) -> Affinity:
    """An affinity onto ``target_size`` tokens whose drafter knows about half of them."""
    random = generator(seed)
    if kind == "identity":
        return Affinity.intersection(Vocabulary.identity(target_size))
    kept = torch.randperm(target_size, generator=random)[: (target_size + 1) // 2]
    if kind == "intersection":
        # The last two drafter tokens are unknown to the target: masked rows.
        ids = torch.cat([kept, torch.tensor([-1, -1])])
        return Affinity.intersection(Vocabulary(ids, target_size))
    vocabulary = Vocabulary(kept.sort().values, target_size)
    if kind == "first-order":
        return Affinity.first_order(vocabulary, zipf(target_size), tau=0.01)
    if kind == "virtual":
        return _virtual(vocabulary, random)
    return _mixed(vocabulary.draft_size, target_size, int(kind[-1]), random)


def _virtual(vocabulary: Vocabulary, random: torch.Generator) -> Affinity:
    """Up to seven virtual tokens, the first of them in an empty cluster: a masked row."""
    pruned = vocabulary.pruned
    clusters = torch.full((vocabulary.target_size,), -1)
    count = max(2, min(7, vocabulary.target_size))
    clusters[pruned] = torch.randint(1, count, (pruned.numel(),), generator=random)
    return Affinity.virtual_tokens(vocabulary, clusters, zipf(vocabulary.target_size))


def _mixed(draft_size: int, target_size: int, rank: int, random: torch.Generator) -> Affinity:
    """Sparse random rows, ``rank`` random priors, random biases, every seventh row masked."""
    entries = 4 * draft_size
    rows = torch.randint(0, draft_size, (entries,), generator=random)
    targets = torch.randint(0, target_size, (entries,), generator=random)
    weights = torch.rand(entries, generator=random, dtype=torch.float64)
    spread = torch.rand(draft_size, rank, generator=random, dtype=torch.float64)
    masked = torch.arange(draft_size) % 7 == 3
    weights[masked[rows]] = 0
    spread[masked] = 0
    return Affinity.from_rows(
        torch.sparse_coo_tensor(
            torch.stack([rows, targets]),
            weights,
            (draft_size, target_size),
            check_invariants=True,
        ).coalesce(),
        spread=spread,
        prior=torch.rand(rank, target_size, generator=random, dtype=torch.float64) ** 4,
        bias=torch.randn(draft_size, generator=random),
    )


def logits(
    rows: int,
    size: int,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    scale: float = 2.0,
    forbidden: float = 0.0,
) -> Tensor:
    """``[rows, size]``: normal, a fraction ``forbidden`` of them -inf, at least one finite."""
    random = generator(seed)
    values = torch.randn(rows, size, generator=random) * scale
    if forbidden:
        banned = torch.rand(rows, size, generator=random) < forbidden
        banned[torch.arange(rows), torch.randint(0, size, (rows,), generator=random)] = False
        values[banned] = -math.inf
    return values.to(dtype)


def in_wider_rows(rows: Tensor, before: int = 3, after: int = 5) -> Tensor:
    """The same values as a slice of wider rows, whose other columns are NaN: not to be read."""
    wide = rows.new_full((*rows.shape[:-1], before + rows.shape[-1] + after), math.nan)
    wide[..., before : before + rows.shape[-1]] = rows
    return wide[..., before : before + rows.shape[-1]]


def dynamic_tokens(rows: int, columns: int, target_size: int, seed: int = 0) -> Tensor:
    """``[rows, columns]`` int32 with duplicates, unused columns (-1) and ids out of range."""
    random = generator(seed)
    tokens = torch.randint(0, target_size, (rows, columns), generator=random, dtype=torch.int32)
    tokens[:, columns // 2 :] = tokens[:, : columns - columns // 2].clone()
    unused = torch.rand(rows, columns, generator=random)
    tokens[unused < 0.2] = -1
    tokens[unused > 0.9] = target_size + 7
    return tokens


@dataclass
class Batch:
    """The arguments of `rdk::verify`, in its order but for the affinity."""

    target_logits: Tensor
    draft_logits: Tensor
    draft_stats: Tensor | None
    draft_rows: Tensor | None
    draft_token_ids: Tensor
    draft_offsets: Tensor
    target_temperature: Tensor
    draft_temperature: Tensor
    step_keys: Tensor
    positions: Tensor
    affinity: Affinity
    max_draft: int
    dynamic_tokens: Tensor | None = None
    dynamic_logits: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    allowed: Tensor | None = None
    logprobs: int = 0
    method: int = 0

    @property
    def size(self) -> int:
        return self.step_keys.numel()

    def arguments(self) -> tuple[object, ...]:
        """What `torch.ops.rdk.verify` and `reference.verify` are called with."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        given = (*fields[:10], *self.affinity.by_target, *fields[11:14])
        last = fields[14:]
        extended = any(x is not None for x in last[:4]) or any(last[4:])
        return (*given, *last) if extended else given

    def replace(self, **changes: object) -> Batch:
        return dataclasses.replace(self, **changes)

    def not_aligned(self) -> Batch:
        """The same with rows that begin anywhere in memory, for slices of wider rows."""
        return self.replace(
            target_logits=in_wider_rows(self.target_logits),
            draft_logits=in_wider_rows(self.draft_logits),
            dynamic_logits=in_wider_rows(self.dynamic_logits),
        )


def batch(
    affinity: Affinity,
    lengths: list[int],
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    target_temperature: float = 1.0,
    draft_temperature: float = 1.0,
    dynamic: int = 0,
    forbidden: float = 0.0,
    scale: float = 2.0,
) -> Batch:
    """A packed batch of ``lengths`` drafts, whose tokens are drawn from their q by the reference.

    The target is a noisy copy of q, so that about half of the drafts are accepted.
    """
    size, drafts = len(lengths), sum(lengths)
    random = generator(seed)
    draft_logits = logits(
        drafts, affinity.draft_size, seed + 1, dtype=dtype, scale=scale, forbidden=forbidden
    )
    # A row needs a column that its bias does not mask.
    usable = (affinity.bias > -math.inf).nonzero().flatten()
    draft_logits[:, usable[0]] = draft_logits[:, usable[0]].nan_to_num(neginf=0.0)
    tokens = values = None
    if dynamic:
        tokens = dynamic_tokens(drafts, dynamic, affinity.target_size, seed + 2)
        values = logits(drafts, dynamic, seed + 3, dtype=dtype, scale=scale)
    step_keys = torch.randint(-(2**63), 2**63 - 1, (size,), generator=random)
    positions = torch.randint(0, 2**33, (size,), generator=random)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(size), offsets.diff())
    ahead = torch.arange(drafts) - offsets[sequence]
    temperature = torch.full((drafts,), draft_temperature)
    drafted, _ = reference.draft(
        draft_logits,
        temperature,
        step_keys[sequence],
        positions[sequence] + ahead,
        *affinity.by_draft,
        tokens,
        values,
    )
    q = reference.redistribute(
        draft_logits, temperature, *affinity.by_target, affinity.row_top, tokens, values
    )
    target_logits = logits(
        drafts + size, affinity.target_size, seed + 4, scale=1.0, forbidden=forbidden
    )
    # q flattened, and nowhere far below uniform, or drafted tokens would hardly ever be rejected.
    flattened = 0.7 * q.clamp(min=0.1 / affinity.target_size).log()
    target_logits[torch.arange(drafts) + sequence] += flattened
    target_logits *= target_temperature or 1.0
    return Batch(
        target_logits.to(dtype),
        draft_logits,
        None,
        None,
        drafted,
        offsets.to(torch.int32),
        torch.full((size,), target_temperature),
        torch.full((size,), draft_temperature),
        step_keys,
        positions,
        affinity,
        max(lengths, default=0),
        tokens,
        values,
    )


@dataclass
class Trees:
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

    @property
    def size(self) -> int:
        return self.step_keys.numel()

    def arguments(self) -> tuple[object, ...]:
        """What `torch.ops.rdk.verify_tree` and `reference.verify_tree` are called with."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        if self.affinity is None:
            nothing = (None,) * 12
            return (*fields[:12], *nothing, self.method) if self.method else tuple(fields[:12])
        return (*fields[:16], *self.affinity.by_target, *fields[17:])

    def replace(self, **changes: object) -> Trees:
        return dataclasses.replace(self, **changes)

    def alone(self, b: int) -> Trees:
        """Sequence b in a batch of its own; the limits are left out."""
        begin, end = self.tree_offsets[b : b + 2].tolist()
        return Trees(
            self.target_logits[begin + b : end + b + 1],
            self.tree_token_ids[begin:end],
            self.parents[begin:end],
            torch.tensor([0, end - begin], dtype=torch.int32),
            *(part[b : b + 1] for part in (self.temperature, self.step_keys, self.positions)),
            self.max_depth,
            draft_logits=self.draft_logits,
            draft_stats=self.draft_stats,
            draft_rows=None if self.draft_rows is None else self.draft_rows[begin:end],
            draft_temperature=(
                None if self.draft_temperature is None else self.draft_temperature[b : b + 1]
            ),
            affinity=self.affinity,
            dynamic_tokens=self.dynamic_tokens,
            dynamic_logits=self.dynamic_logits,
            method=self.method,
        )


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
    random = generator(seed)
    nodes, batch = sum(sizes), len(sizes)
    target = logits(
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
    random, nodes, size = generator(seed), sum(sizes), affinity.target_size
    lengths = torch.tensor(sizes, dtype=torch.int64)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    sequence = torch.repeat_interleave(torch.arange(len(sizes)), lengths)
    node = torch.arange(nodes) - offsets[sequence]
    # Long chains, bushes and stars, by sequence.
    reach = (node + 1) ** torch.rand(len(sizes), generator=random)[sequence].mul(1.4).clamp(max=1)
    parents = node - 1 - (torch.rand(nodes, generator=random) * reach).long()
    above = offsets[sequence] + sequence + 1 + parents  # the row that follows the parent
    rows = nodes + len(sizes)
    drafter = logits(
        rows, affinity.draft_size, seed + 1, dtype=dtype, scale=4.0, forbidden=forbidden
    )
    usable = (affinity.bias > -math.inf).nonzero().flatten()
    drafter[:, usable[0]] = drafter[:, usable[0]].nan_to_num(neginf=0.0)
    tokens = values = None
    if dynamic:
        tokens = dynamic_tokens(rows, dynamic, size, seed + 2)
        values = logits(rows, dynamic, seed + 3, dtype=dtype, scale=4.0)
    hot = torch.full((rows,), draft_temperature)
    q = reference.redistribute(
        drafter, hot, *affinity.by_target, affinity.row_top, tokens, values
    ).nan_to_num()
    target = logits(rows, size, seed + 4, scale=0.5, forbidden=forbidden)
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


def call(operator: str, dtype: torch.dtype = torch.float32, **given: int) -> dict[str, Any]:
    """A valid call of any operator, by the contract alone, with every argument by name.

    Args:
        dtype: of logits.
        given: sizes in place of the usual ones.
    """
    sizes = {"...": (6,), "B": 3, "N": 6, "M": 6, "V_t": 40, "C": 4, "V": 40, "d": 16} | given
    made = affinity("mixed-2", sizes["V_t"])
    sizes |= {"V_d": made.draft_size, "R": made.rank}
    random = generator(0)

    def value(name: str, rule: Argument | Number) -> Any:
        if isinstance(rule, Number):
            return min(rule.most, 2)
        if rule.affinity:
            return getattr(made, name)
        shape = shape_of(rule._replace(shape=re.sub(">= | or .*", "", rule.shape)), sizes)
        if rule.dtypes == LOGITS:
            return (torch.randn(shape, generator=random) * 2).to(dtype)
        if rule.dtypes[0] == torch.float32:
            return torch.full(shape, float(name != "min_p"))
        count = torch.arange(math.prod(shape)).reshape(shape).to(rule.dtypes[0])
        if name.endswith("offsets"):
            return count * (sizes["N"] // sizes["B"])
        if name in ("parents", "allowed", *LIMITS):
            return torch.full_like(count, 0 if name in LIMITS else -1)
        return count % sizes["V_t"]

    return {name: value(name, rule) for name, rule in OPERATORS[operator].arguments.items()}
