"""Inputs that lead kernels along every path, at sizes that any machine splits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests import generators, tree_generators
from tests.generators import Batch
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


def row_limits(rows: int) -> dict[str, Tensor]:
    """Of drafts: each limit alone, top-k and top-p together, and none."""
    return {
        "top_k": torch.tensor([40, 0, 0, 300, 0, 7])[torch.arange(rows) % 6].int(),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.7, 1.0, 0.999])[torch.arange(rows) % 6],
        "min_p": torch.tensor([0.0, 0.0, 0.05, 0.0, 0.0, 0.001])[torch.arange(rows) % 6],
    }


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


@functools.cache
def tree_limits() -> dict[str, Tensor]:
    """Of five trees of 63 nodes: other limits for each, and masks of most tokens."""
    allowed = torch.full((68, -(-SIZE // 32)), -1, dtype=torch.int32)
    for row in range(68):
        allowed[row, row % 7 :: 7] = 0x5555_0F0F >> row % 3
    return row_limits(5) | {"allowed": allowed}


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


def repeated(batch: Batch, times: int) -> Batch:
    """The same sequences again and again: what each decides may not change."""
    drafts = batch.draft_token_ids.numel()
    assert int(batch.draft_offsets[-1]) == drafts
    assert batch.draft_rows is None

    def again(name: str) -> Tensor | None:
        tensor: Tensor | None = getattr(batch, name)
        return None if tensor is None else tensor.repeat(times, *[1] * (tensor.dim() - 1))

    starts = torch.arange(times).repeat_interleave(batch.size) * drafts
    ends = torch.tensor([times * drafts])
    names = (
        "target_logits",
        "draft_logits",
        "draft_stats",
        "draft_token_ids",
        "step_keys",
        "positions",
    )
    more = ("target_temperature", "draft_temperature", "dynamic_tokens", "dynamic_logits")
    return batch.replace(
        **{name: again(name) for name in (*names, *more)},
        draft_offsets=torch.cat([batch.draft_offsets[:-1].repeat(times) + starts, ends]).int(),
    )


def bad_values() -> Batch:
    """A draft row and a target row without distribution, ids outside, a draft cut short."""
    return without_distributions().replace(
        draft_offsets=batch("virtual").draft_offsets, draft_rows=None
    )


BATCHES: dict[str, Callable[[], Batch]] = {
    "mixed": batch,
    "16 bits": lambda: batch("virtual", torch.bfloat16),
    "greedy": greedy_target,
    "direct pass": nearly_equal,
    "bad values": bad_values,
    "by block": lambda: batch().replace(method=1),
    "by block, bad values": lambda: bad_values().replace(method=1),
}
