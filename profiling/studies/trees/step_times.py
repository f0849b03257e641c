"""What a step of speculative decoding takes: the target's pass, the drafter's passes, sampling.

Times are those of the processor, of one thread, which other processes disturb less than the
clock's: of each part the median of `ROUNDS`, all parts in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.decoding.trees import Tree
from rdk_cuda.evaluation.speed import cached_pass

from .proposals import Pair, body_pass, drafting, read

BY_TOKEN, BY_BLOCK, TREE = "chain by token", "chain by block", "tree"
ROUNDS = 15

Part = tuple[str, int]  # and K


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each part.

    Attributes:
        target: of a pass over K + 1 positions, by K.
        draft: of one drafted token or node, by way.
        verify: by way and K.
    """

    target: dict[int, float]
    draft: dict[str, float]
    verify: dict[Part, float]

    def seconds(self, way: str, length: int) -> float:
        """Of a step with K drafts."""
        return self.target[length] + length * self.draft[way] + self.verify[way, length]


@torch.no_grad()
def measure_steps(pair: Pair, contexts: Tensor, lengths: Sequence[int]) -> StepTimes:
    """Of steps after the first context, with rows of logits after as many as are drafted."""
    longest = max(lengths)
    contexts = contexts[: longest + 1]
    root = Tree(*2 * (torch.empty(longest + 1, 0, dtype=torch.int64),))
    hidden, first = drafting(pair.models, contexts)(root), contexts[:1].tolist()
    columns = pair.columns(hidden, contexts.tolist())
    logits = read(pair.models.target, contexts, root).float()[None, :, 0]
    affinity, temperature = pair.method.drafter.affinity, pair.temperature
    seeds = iter(range(1 << 30))
    body = body_pass(pair.models, contexts[:1])

    def drawn(columns: dict[str, Tensor]) -> rdk_cuda.Draft:
        logits = columns["draft_logits"]
        dynamic = columns.get("dynamic_tokens"), columns.get("dynamic_logits")
        return rdk_cuda.draft(
            logits,
            affinity,
            temperature,
            seeds=next(seeds),
            dynamic_tokens=dynamic[0],
            dynamic_logits=dynamic[1],
        )

    def draw() -> None:
        body()
        drawn(pair.columns(hidden[:1], first))

    def choose() -> None:
        body()
        pair.probs(hidden[:1], first).topk(longest)

    chains = {
        length: drawn({name: rows[None, :length] for name, rows in columns.items()})
        for length in lengths
    }

    def verify(method: Any, length: int) -> None:
        chain = replace(chains[length], step_keys=torch.tensor([next(seeds)]))
        rdk_cuda.verify(logits[:, : length + 1], chain, affinity, temperature, method=method)

    def walk(length: int) -> None:
        tree = chains[length].tokens, torch.arange(-1, length - 1)[None]
        rows = logits[:, : length + 1]
        rdk_cuda.verify_tree(rows, *tree, temperature, seeds=next(seeds))

    target = cached_pass(pair.models.target, contexts[0])
    calls: dict[Part, Callable[[], object]] = {("draw", 0): draw, ("choose", 0): choose}
    for k in lengths:
        calls["target", k] = partial(target, k + 1)
        calls[BY_TOKEN, k] = partial(verify, "token", k)
        calls[BY_BLOCK, k] = partial(verify, "block", k)
        calls[TREE, k] = partial(walk, k)
    taken = medians(calls)
    draft = {BY_TOKEN: taken["draw", 0], BY_BLOCK: taken["draw", 0], TREE: taken["choose", 0]}
    verifying = {(way, k): taken[way, k] for way in draft for k in lengths}
    return StepTimes({k: taken["target", k] for k in lengths}, draft, verifying)


def medians(calls: dict[Part, Callable[[], object]]) -> dict[Part, float]:
    """Seconds of each call, after one that does not count."""
    taken: dict[Part, list[float]] = {part: [] for part in calls}
    for _ in range(ROUNDS + 1):
        for part, call in calls.items():
            start = time.process_time()
            call()
            taken[part].append(time.process_time() - start)
    return {part: statistics.median(times[1:]) for part, times in taken.items()}
