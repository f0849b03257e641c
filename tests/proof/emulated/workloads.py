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
from tests.tree_generators import Trees, chains

from .batches import (
    SIZE,
    aligned_head,
    batch,
    few_rows,
    greedy_target,
    head,
    limited,
    long_drafts,
    mixed_trees,
    nearly_equal,
    no_residual,
    plain,
    row_limits,
    tree_limits,
    unlikely_residual,
    without_distributions,
)


def drafter_rows(batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    rows = batch.draft_logits.shape[0]
    return batch.draft_logits, torch.full((rows,), temperature)


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


def verify_tree(
    dtype: torch.dtype, temperature: float = 1.1, limits: dict[str, Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Walks of several nodes, one that stops at a bad row, and offsets out of order."""
    made = tree_generators.trees([20, 0, 9, 31, 3], SIZE, dtype=dtype, temperature=temperature)
    made.target_logits[22, 17] = math.nan  # the root of the third
    made.tree_offsets[-1] = 62
    return tuple(torch.ops.rdk.verify_tree(*made.replace(**limits or {}).arguments()))


def walk(trees: Trees, **changes: object) -> tuple[Tensor, ...]:
    return tuple(torch.ops.rdk.verify_tree(*trees.replace(**changes).arguments()))


def shards(batch: Batch) -> tuple[Tensor, ...]:
    """All that three ranks return."""
    calls = sharded.sharded(batch.with_stats() if batch.draft_stats is None else batch, 3)
    each = (*calls.first, *calls.second, *calls.third)
    return (*calls.sums, *(output for outputs in each for output in outputs))


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
    "verify_tree, drawn, direct pass": lambda: walk(chains(nearly_equal(), twice=True)),
    "verify_tree, drawn, no residual": lambda: walk(chains(no_residual(), twice=True)),
    "verify_tree, by block": lambda: walk(mixed_trees(), method=1),
    "verify_tree, by block, 16 bits": lambda: walk(
        mixed_trees("virtual", torch.bfloat16), method=1
    ),
    "verify_tree, by block, limits": lambda: walk(mixed_trees(), method=1, **tree_limits()),
    "verify_tree, by block, greedy": lambda: walk(
        mixed_trees(), method=1, temperature=torch.zeros(5)
    ),
    "verify_tree, by block, direct pass": lambda: walk(chains(unlikely_residual(), twice=True)),
    "verify_tree, by block, long chains": lambda: walk(chains(long_drafts(), twice=True), method=1),
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
