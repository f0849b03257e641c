"""Random inputs for the operators: affinities of every kind, logits, packed batches.

Everything is drawn from a seed, so that a failure can be repeated.
"""

from __future__ import annotations

import dataclasses
import functools
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


@functools.cache
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
            torch.stack([rows, targets]), weights, (draft_size, target_size), check_invariants=True
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


class Drafted:
    """What batches and trees have in common."""

    @property
    def size(self) -> int:
        return self.step_keys.numel()

    def replace(self, **changes: object) -> Any:
        return dataclasses.replace(self, **changes)

    def with_stats(self, temperature: Tensor | None = None) -> Any:
        """With those that `draft` returns for the rows, all drafted at the first temperature or
        each at its own."""
        zeros = torch.zeros(len(self.draft_logits), dtype=torch.int64)
        if temperature is None:
            temperature = self.draft_temperature[:1].expand(len(zeros)).contiguous()
        given = (self.draft_logits, temperature, zeros, zeros, *self.affinity.by_draft)
        stats = torch.ops.rdk.draft(*given, self.dynamic_tokens, self.dynamic_logits)[1]
        return self.replace(draft_stats=stats)


@dataclass
class Batch(Drafted):
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

    def arguments(self) -> tuple[object, ...]:
        """What `torch.ops.rdk.verify` and `reference.verify` are called with."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        given = (*fields[:10], *self.affinity.by_target, *fields[11:14])
        last = fields[14:]
        extended = any(x is not None for x in last[:4]) or any(last[4:])
        return (*given, *last) if extended else given

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


def nearly_equal(size: int, sequences: int, beyond: float = 0.0) -> Batch:
    """A draft each, with 3 % of q and none of p; p is q, or more by e^beyond in its second half."""
    made = batch(affinity("identity", size), [1] * sequences)
    logits, target = made.draft_logits.clone(), made.target_logits.clone()
    logits[:, 5] = logits.logsumexp(1) + math.log(0.03)
    target[0::2] = logits
    target[0::2, size // 2 :] += beyond
    target[0::2, 5] = -math.inf
    drafts = torch.full((sequences,), 5)
    return made.replace(target_logits=target, draft_logits=logits, draft_token_ids=drafts)


def without_residual(made: Batch) -> Batch:
    """With stats of half the sum, so q = 2 p: half are rejected, and nothing is left of p - q."""
    target = made.target_logits.clone()
    target[0::2] = made.draft_logits
    made = made.replace(target_logits=target).with_stats()
    made.draft_stats[:, 1] /= 2
    return made


def call(operator: str, dtype: torch.dtype = torch.float32, **given: int) -> dict[str, Any]:
    """A valid call of any operator, by the contract alone, with every argument by name.

    Args:
        dtype: of logits.
        given: sizes in place of the usual ones.
    """
    sizes = {"...": (6,), "B": 3, "N": 6, "M": 6, "V_t": 40, "W": 40, "C": 4, "V": 40, "d": 16}
    sizes |= {
        "max_draft": 2,
        "first_chunk": 0,
        "S": 3,
        "K": 2,
        "J": 2,
        "place": 1,
        "limited": 1,
        **{"L": 9, "n": 3, "nnz": 90, "recent": 3, "window": 6, "width": 8},
    } | given
    sizes["target_size"] = sizes["V_t"]
    made = affinity("mixed-2", sizes["V_t"])
    sizes |= {"V_d": made.draft_size, "R": made.rank}
    random = generator(0)

    def value(name: str, rule: Argument | Number) -> Any:
        if isinstance(rule, Number):
            return sizes.get(name, min(rule.most, 2))
        if rule.affinity:
            return getattr(made, name)
        shape = shape_of(rule._replace(shape=re.sub(">= | or .*", "", rule.shape)), sizes)
        if rule.dtypes == LOGITS:
            return (torch.randn(shape, generator=random) * 2).to(dtype)
        if rule.dtypes[0] == torch.bool:
            return torch.arange(math.prod(shape)) % 5 != 0
        if rule.dtypes[0] == torch.float32:
            return torch.full(shape, float(name != "min_p"))
        count = torch.arange(math.prod(shape)).reshape(shape).to(rule.dtypes[0])
        if name.endswith("offsets"):
            return count * (sizes["N"] // sizes["B"])
        if name in ("parents", "allowed", *LIMITS):
            return torch.full_like(count, 0 if name in LIMITS else -1)
        return count % sizes["V_t"]

    return {name: value(name, rule) for name, rule in OPERATORS[operator].arguments.items()}
