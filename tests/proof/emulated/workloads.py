"""Calls of every operator that lead kernels along every path, at sizes that any machine splits.

`WORKLOADS[name]()` calls `torch.ops.rdk`, whatever that stands for, and returns all outputs. Inputs
are built on the first call and kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from rdk_cuda._ops.contract import LIMITS, OPERATORS
from tests import generators, tree_generators
from tests.generators import Batch
from tests.operators import sharded
from tests.tree_generators import Trees

SIZE = 9 * 1024 + 1  # a chunk more than a block has warps, and a column more than that
DYNAMIC = 1025  # two chunks


@functools.cache
def batch(kind: str = "mixed-2", dtype: torch.dtype = torch.float32) -> Batch:
    return generators.batch(
        generators.affinity(kind, SIZE),
        [3, 0, 1, 4],
        dtype=dtype,
        draft_temperature=0.9,
        target_temperature=1.1,
        dynamic=DYNAMIC,
        forbidden=0.05,
    )


@functools.cache
def plain(kind: str = "mixed-1", dtype: torch.dtype = torch.float32) -> Batch:
    """Rows of nine whole chunks, with a bias or none, with one prior or none.

    Some logits of the last row are so large that a very cold row of them has no distribution.
    """
    size = 2 * 9 * 1024 - (14 if kind == "virtual" else 0)
    made = generators.batch(generators.affinity(kind, size), [3, 1], dtype=dtype, forbidden=0.02)
    made.draft_logits[-1, ::1000] = -30.0
    made.draft_logits[:-1].clamp_(-3, 3)
    assert made.affinity.draft_size == 9 * 1024
    return made


def drafter_rows(batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    rows = batch.draft_logits.shape[0]
    return batch.draft_logits, torch.full((rows,), temperature)


def row_limits(rows: int) -> dict[str, Tensor]:
    """Of drafts: each limit alone, top-k and top-p together, and none."""
    return {
        "top_k": torch.tensor([40, 0, 0, 300, 0, 7])[torch.arange(rows) % 6].int(),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.7, 1.0, 0.999])[torch.arange(rows) % 6],
        "min_p": torch.tensor([0.0, 0.0, 0.05, 0.0, 0.0, 0.001])[torch.arange(rows) % 6],
    }


def draft(
    batch: Batch,
    temperature: float = 0.9,
    limits: dict[str, Tensor] | None = None,
    branches: Tensor | None = None,
) -> tuple[Tensor, ...]:
    logits, temperatures = drafter_rows(batch, temperature)
    integers = torch.arange(logits.shape[0])
    return tuple(
        torch.ops.rdk.draft(
            logits,
            temperatures,
            integers * 31,
            integers + 2**33,
            *batch.affinity.by_draft,
            batch.dynamic_tokens,
            batch.dynamic_logits,
            *(limits or dict.fromkeys(LIMITS)).values(),
            branches,
        )
    )


def redistribute(
    batch: Batch, temperature: float = 0.9, limits: dict[str, Tensor] | None = None
) -> tuple[Tensor, ...]:
    return (
        torch.ops.rdk.redistribute(
            *drafter_rows(batch, temperature),
            *batch.affinity.by_target,
            batch.affinity.row_top,
            batch.dynamic_tokens,
            batch.dynamic_logits,
            *(limits or {}).values(),
        ),
    )


def overlap(batch: Batch) -> tuple[Tensor, ...]:
    drafter, temperature = drafter_rows(batch, 0.9)
    target = batch.target_logits[: len(drafter)]
    dynamic = batch.dynamic_tokens, batch.dynamic_logits
    columns = batch.affinity.by_target
    return tuple(
        torch.ops.rdk.overlap(target, drafter, temperature, temperature, *columns, *dynamic)
    )


def compared(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient of alpha, random bits, and stats that there could be."""
    rows, affinity = len(batch.draft_logits), batch.affinity
    below = torch.empty(rows, -(-affinity.target_size // 32), dtype=torch.int32)
    below.random_(-(2**31), 2**31, generator=generators.generator(5))
    stats = torch.tensor([3.0, 90.0, 0.4, *[0.3] * affinity.rank]).repeat(rows, 1)
    return torch.linspace(-1, 1, rows), below, stats


def overlap_backward(batch: Batch) -> tuple[Tensor, ...]:
    given = (*compared(batch), *drafter_rows(batch, 0.9), *batch.affinity.by_draft)
    return tuple(torch.ops.rdk.overlap_backward(*given, batch.dynamic_tokens, batch.dynamic_logits))


def verify(batch: Batch) -> tuple[Tensor, ...]:
    return tuple(torch.ops.rdk.verify(*batch.arguments()))


@functools.cache
def limited(dtype: torch.dtype = torch.float32, logprobs: int = 1) -> Batch:
    """Each sequence has other limits, and one has none; each row's mask allows most tokens."""
    made = batch("virtual" if dtype != torch.float32 else "mixed-2", dtype)
    allowed = torch.full((12, -(-SIZE // 32)), -1, dtype=torch.int32)
    for row in range(12):
        allowed[row, row % 7 :: 7] = 0x5555_0F0F >> row % 3
    return made.replace(
        top_k=torch.tensor([300, 0, 0, 0], dtype=torch.int32),
        top_p=torch.tensor([0.8, 1.0, 0.95, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.01]),
        allowed=allowed,
        logprobs=logprobs,
    )


@functools.cache
def few_rows() -> Batch:
    """A group of them, with dynamic columns: every block searches all of a group's rows."""
    made = batch()
    return made.replace(
        draft_logits=made.draft_logits[:4],
        dynamic_tokens=made.dynamic_tokens[:4],
        dynamic_logits=made.dynamic_logits[:4],
    )


@functools.cache
def greedy_target() -> Batch:
    """Nearly all columns tie, and so do chunks; every other draft is the argmax."""
    made = batch()
    target = made.target_logits.round().clamp(max=1)
    drafts = made.draft_token_ids.clone()
    rows = torch.arange(8) + torch.tensor([0, 0, 0, 2, 3, 3, 3, 3])
    drafts[::2] = target[rows].argmax(1)[::2]
    return made.replace(
        target_logits=target, draft_token_ids=drafts, target_temperature=torch.zeros(4)
    )


@functools.cache
def nearly_equal() -> Batch:
    """Residuals of 3 %, so that many need the direct pass; two blocks a sequence."""
    return generators.nearly_equal(5 * 1024 + 1, sequences=12, beyond=0.06)


@functools.cache
def no_residual() -> Batch:
    made = nearly_equal()
    made = made.replace(draft_logits=made.target_logits[0::2].nan_to_num(neginf=0.0))
    return generators.without_residual(made)


@functools.cache
def unlikely_residual() -> Batch:
    """By block, p is scarcely more than q, and a factor below 1 is given up only now and then.

    So some sequences need the direct pass for a prefix that has drafts, and some give it up there.
    """
    size, sequences = 2 * 1024 + 1, 40
    made = generators.batch(generators.affinity("identity", size), [2] * sequences)
    drafts = torch.full((sequences, 2), 5)
    target = torch.zeros(sequences, 3, size)
    logits = target[:, :2].clone()
    target[:, :2] = logits
    target[:, 0, 5] += math.log(0.985)
    target[:, 1, 7] += math.log(size * 0.03)
    target[:, 1, 5] = -math.inf
    return made.replace(
        target_logits=target.flatten(0, 1),
        draft_logits=logits.flatten(0, 1),
        draft_token_ids=drafts.flatten(),
        method=1,
    )


@functools.cache
def long_drafts() -> Batch:
    """As many drafts as a block has warps, one more or less, and several times as many.

    By block, the first mostly leaves a factor below 1, and the last makes it 1 again or does not.
    """
    lengths = torch.tensor([8, 8, 8, 7, 9, 16, 17, 40])
    made = generators.batch(generators.affinity("identity", 300), lengths.tolist())
    sequences = torch.arange(made.size)
    drafts = torch.arange(int(lengths.sum()))
    rows = drafts + sequences.repeat_interleave(lengths)
    target = made.target_logits.clone()
    target[rows] = made.draft_logits
    first = made.draft_offsets[:-1].long()
    last = first + lengths - 1
    target[rows[first], made.draft_token_ids[first]] -= torch.tensor([2.0, 2, 2, 1, 1, 2, 0, 1])
    target[rows[last], made.draft_token_ids[last]] += torch.tensor([3.0, 3, 1, 3, 1, 3, 3, 3])
    return made.replace(target_logits=target)


@functools.cache
def without_distributions() -> Batch:
    """Sequences with a bad draft row, a bad target row, a bad id and bad offsets."""
    made = batch("virtual")
    drafter, target = made.draft_logits.clone(), made.target_logits.clone()
    drafter[0, 17] = math.nan
    target[4] = -math.inf
    tokens = made.draft_token_ids.clone()
    tokens[3:] = torch.tensor([1, SIZE, -1, 7, 2**40])
    return made.replace(
        draft_logits=drafter,
        target_logits=target,
        draft_token_ids=tokens,
        draft_offsets=torch.tensor([0, 3, 3, 5, 4], dtype=torch.int32),
        draft_rows=torch.tensor([0, -1, 2, -1, 99, 5, 6, 7], dtype=torch.int32),
    )


def verify_tree(
    dtype: torch.dtype, temperature: float = 1.1, limits: dict[str, Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Walks of several nodes, one that stops at a bad row, and offsets out of order."""
    made = tree_generators.trees([20, 0, 9, 31, 3], SIZE, dtype=dtype, temperature=temperature)
    made.target_logits[22, 17] = math.nan  # the root of the third
    made.tree_offsets[-1] = 62
    return tuple(torch.ops.rdk.verify_tree(*made.replace(**limits or {}).arguments()))


@functools.cache
def mixed_trees(kind: str = "mixed-2", dtype: torch.dtype = torch.float32) -> Trees:
    """Drawn nodes and fixed ones, bad rows of both models, and offsets out of order."""
    made = tree_generators.mixed_trees(
        generators.affinity(kind, SIZE),
        [20, 0, 9, 31, 3],
        dtype=dtype,
        temperature=1.1,
        draft_temperature=0.9,
        dynamic=DYNAMIC,
        forbidden=0.05,
        drawn=0.7,
        bad=0.02,
    )
    made.target_logits[22, 17] = math.nan  # the root of the third
    made.draft_logits[::9, 17] = math.nan
    made.tree_offsets[-1] = 62
    return made


def tree_of_chains(batch: Batch) -> Trees:
    """The drafts of each sequence, all drawn, and behind each of them a fixed node with another
    token: those that replace drafts."""
    drafts = batch.draft_token_ids.numel()
    first = torch.repeat_interleave(batch.draft_offsets[:-1], batch.draft_offsets.diff())
    own = torch.arange(drafts, dtype=torch.int32) - first
    rows = torch.arange(drafts) + torch.repeat_interleave(
        torch.arange(batch.size), batch.draft_offsets.diff()
    )
    above = torch.where(own == 0, -1, 2 * own - 2)
    begins = batch.draft_offsets[:-1].long() + torch.arange(batch.size)
    places = torch.arange(batch.target_logits.shape[0])
    twice = torch.where(torch.isin(places, begins), 1, 2)
    return Trees(
        batch.target_logits.repeat_interleave(twice, 0),
        torch.stack([batch.draft_token_ids, batch.target_logits[rows].argmax(1)], 1).flatten(),
        above.repeat_interleave(2).int(),
        batch.draft_offsets * 2,
        batch.target_temperature,
        batch.step_keys,
        batch.positions,
        batch.max_draft,
        draft_logits=batch.draft_logits,
        draft_stats=batch.draft_stats,
        draft_rows=torch.stack([torch.arange(drafts), torch.full((drafts,), -1)], 1)
        .flatten()
        .int(),
        draft_temperature=batch.draft_temperature,
        affinity=batch.affinity,
        dynamic_tokens=batch.dynamic_tokens,
        dynamic_logits=batch.dynamic_logits,
        method=batch.method,
    )


def walk(trees: Trees, **changes: object) -> tuple[Tensor, ...]:
    return tuple(torch.ops.rdk.verify_tree(*trees.replace(**changes).arguments()))


@functools.cache
def tree_limits() -> dict[str, Tensor]:
    """Of five trees of 63 nodes: other limits for each, and masks of most tokens."""
    allowed = torch.full((68, -(-SIZE // 32)), -1, dtype=torch.int32)
    for row in range(68):
        allowed[row, row % 7 :: 7] = 0x5555_0F0F >> row % 3
    return row_limits(5) | {"allowed": allowed}


def shards(batch: Batch) -> tuple[Tensor, ...]:
    """All that three ranks return."""
    calls = sharded.sharded(batch.with_stats() if batch.draft_stats is None else batch, 3)
    each = (*calls.first, *calls.second, *calls.third)
    return (*calls.sums, *(output for outputs in each for output in outputs))


@functools.cache
def head() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, the head's weight and bias, and tokens, some of them outside."""
    return (
        generators.logits(5, 777, dtype=torch.bfloat16),
        generators.logits(300, 777, seed=1, dtype=torch.bfloat16, scale=0.1),
        generators.logits(1, 300, seed=2, dtype=torch.bfloat16)[0],
        generators.dynamic_tokens(5, 100, 300),
    )


@functools.cache
def aligned_head() -> tuple[Tensor, Tensor, None, Tensor]:
    """Rows that are read by vectors, of float32, which shows how sums were rounded. Five whole
    steps, so one part has two of them, and a rest."""
    return (
        generators.logits(2, 1404),
        generators.logits(60, 1404, seed=1, scale=0.1),
        None,
        generators.dynamic_tokens(2, 40, 60),
    )


def gather_logits(given: tuple[Tensor, Tensor, Tensor | None, Tensor]) -> tuple[Tensor, ...]:
    hidden, weight, bias, tokens = given
    return (torch.ops.rdk.gather_logits(hidden, weight, tokens, bias),)


def by_contract(operator: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    given = generators.call(operator, dtype, V_t=SIZE)
    result = getattr(torch.ops.rdk, operator)(*given.values())
    written = [given[n] for n, rule in OPERATORS[operator].tensors.items() if rule.written]
    return *written, *((result,) if isinstance(result, Tensor) else result)


def step_keys(stage: int = 0) -> tuple[Tensor, ...]:
    integers = torch.arange(-300, 300)
    return (torch.ops.rdk.step_keys(integers * 2**53, integers * 2**40, stage),)


WORKLOADS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "draft": lambda: draft(batch()),
    "draft, 16 bits": lambda: draft(batch("virtual", torch.bfloat16)),
    "draft, not aligned": lambda: draft(batch("virtual", torch.bfloat16).not_aligned()),
    "draft, greedy": lambda: draft(batch("mixed-2", torch.float16), 0.0),
    "draft, plain": lambda: draft(plain()),
    "draft, plain, 16 bits": lambda: draft(plain("virtual", torch.bfloat16), 1.0),
    "draft, plain, greedy": lambda: draft(plain("virtual", torch.float16), 0.0),
    "draft, plain, very cold": lambda: draft(plain(), 1e-38),
    "draft, plain, very hot": lambda: draft(plain(), 2e38),
    "draft, limits": lambda: draft(batch(), limits=row_limits(8)),
    "draft, limits, 16 bits": lambda: draft(
        batch("virtual", torch.bfloat16), 1.0, limits=row_limits(8)
    ),
    "draft, branches": lambda: draft(batch(), branches=torch.arange(8, dtype=torch.int32) * 2**20),
    "redistribute": lambda: redistribute(batch()),
    "redistribute, plain": lambda: redistribute(plain()),
    "redistribute, plain, 16 bits": lambda: redistribute(plain("virtual", torch.bfloat16), 1.0),
    "redistribute, plain, greedy": lambda: redistribute(plain("virtual", torch.float16), 0.0),
    "redistribute, greedy": lambda: redistribute(batch("mixed-2", torch.float16), 0.0),
    "redistribute, limits": lambda: redistribute(few_rows(), limits=row_limits(4)),
    "overlap": lambda: overlap(batch()),
    "overlap, 16 bits": lambda: overlap(batch("virtual", torch.bfloat16).not_aligned()),
    "overlap_backward": lambda: overlap_backward(batch()),
    "overlap_backward, 16 bits": lambda: overlap_backward(batch("virtual", torch.bfloat16)),
    "verify": lambda: verify(batch()),
    "verify, 16 bits": lambda: verify(batch("virtual", torch.bfloat16)),
    "verify, not aligned": lambda: verify(batch("virtual", torch.bfloat16).not_aligned()),
    "verify, greedy": lambda: verify(greedy_target()),
    "verify, direct pass": lambda: verify(nearly_equal()),
    "verify, no residual": lambda: verify(no_residual()),
    "verify, bad values": lambda: verify(without_distributions()),
    "verify, limits": lambda: verify(limited()),
    "verify, limits, 16 bits": lambda: verify(limited(torch.bfloat16, logprobs=2)),
    "verify, greedy, limits": lambda: verify(
        greedy_target().replace(allowed=limited().allowed, logprobs=2)
    ),
    "verify, by block": lambda: verify(batch().replace(method=1)),
    "verify, by block, 16 bits": lambda: verify(batch("virtual", torch.bfloat16).replace(method=1)),
    "verify, by block, greedy": lambda: verify(greedy_target().replace(method=1)),
    "verify, by block, direct pass": lambda: verify(unlikely_residual()),
    "verify, by block, no residual": lambda: verify(no_residual().replace(method=1)),
    "verify, by block, bad values": lambda: verify(without_distributions().replace(method=1)),
    "verify, by block, limits": lambda: verify(limited().replace(method=1)),
    "verify, by block, limits, 16 bits": lambda: verify(
        limited(torch.bfloat16, logprobs=2).replace(method=1)
    ),
    "verify, long drafts": lambda: verify(long_drafts()),
    "verify, by block, long drafts": lambda: verify(long_drafts().replace(method=1)),
    "on shards": lambda: shards(batch()),
    "on shards, 16 bits": lambda: shards(batch("virtual", torch.bfloat16).not_aligned()),
    "on shards, greedy": lambda: shards(greedy_target()),
    "on shards, direct pass": lambda: shards(nearly_equal()),
    "on shards, no residual": lambda: shards(no_residual()),
    "on shards, bad values": lambda: shards(without_distributions()),
    "on shards, long drafts": lambda: shards(long_drafts()),
    "verify_tree": lambda: verify_tree(torch.float32),
    "verify_tree, 16 bits": lambda: verify_tree(torch.bfloat16),
    "verify_tree, greedy": lambda: verify_tree(torch.float16, 0.0),
    "verify_tree, limits": lambda: verify_tree(torch.float32, limits=tree_limits()),
    "verify_tree, limits, 16 bits": lambda: verify_tree(torch.bfloat16, 1.0, limits=row_limits(5)),
    "verify_tree, drawn": lambda: walk(mixed_trees()),
    "verify_tree, drawn, 16 bits": lambda: walk(mixed_trees("virtual", torch.bfloat16)),
    "verify_tree, drawn, limits": lambda: walk(mixed_trees(), **tree_limits()),
    "verify_tree, drawn, greedy": lambda: walk(mixed_trees(), temperature=torch.zeros(5)),
    "verify_tree, drawn, direct pass": lambda: walk(tree_of_chains(nearly_equal())),
    "verify_tree, drawn, no residual": lambda: walk(tree_of_chains(no_residual())),
    "verify_tree, by block": lambda: walk(mixed_trees(), method=1),
    "verify_tree, by block, 16 bits": lambda: walk(
        mixed_trees("virtual", torch.bfloat16), method=1
    ),
    "verify_tree, by block, limits": lambda: walk(mixed_trees(), method=1, **tree_limits()),
    "verify_tree, by block, greedy": lambda: walk(
        mixed_trees(), method=1, temperature=torch.zeros(5)
    ),
    "verify_tree, by block, direct pass": lambda: walk(tree_of_chains(unlikely_residual())),
    "verify_tree, by block, long chains": lambda: walk(tree_of_chains(long_drafts()), method=1),
    "gather_logits": lambda: gather_logits(head()),
    "gather_logits, aligned": lambda: gather_logits(aligned_head()),
    "step_keys": step_keys,
    "step_keys, the last stage": lambda: step_keys(2**32 - 1),
}
WORKLOADS |= {
    operator: functools.partial(by_contract, operator)
    for operator in OPERATORS
    if operator not in WORKLOADS
}
