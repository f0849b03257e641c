"""Saves results of every operator with 1, 2 and 4 threads.

`python -m tests.proof.cpu.workload FILE small|all`

A process of its own, because the instruction set is chosen once, by `RDK_CPU_CAPABILITY`.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators, tree_generators
from tests.generators import Batch
from tests.tree_generators import Trees

THREADS = (1, 2, 4)
SMALL = 2600  # columns


def batches(small: bool) -> dict[str, Batch]:
    """Rows longer and shorter than a thread's least share, aligned and not."""
    found = {}
    for kind, size, lengths, dtype in (
        ("virtual", 2600, [3, 0, 1, 5, 2], torch.float32),
        ("mixed-3", 1029, [2, 4], torch.bfloat16),
        ("first-order", 1500, [1, 3], torch.float16),
        ("mixed-1", 515, [2, 1], torch.float16),
        ("mixed-4", 300, [1, 2], torch.float32),
        ("intersection", 75_001, [2, 2, 2, 2], torch.bfloat16),
        ("virtual", 75_001, [3], torch.float32),
    ):
        if small and size > SMALL:
            continue
        batch = generators.batch(
            generators.affinity(kind, size),
            lengths,
            dtype=dtype,
            draft_temperature=0.9,
            target_temperature=1.1,
            dynamic=7,
            forbidden=0.05,
        )
        found[f"{kind} {size}"] = batch
        found[f"{kind} {size}, elsewhere"] = batch.not_aligned()
        found[f"{kind} {size}, truncated"] = truncated(batch)
        found[f"{kind} {size}, by block"] = batch.replace(method=1)
        found[f"{kind} {size}, truncated, by block"] = truncated(batch).replace(method=1)
        if size < SMALL:
            found[f"{kind} {size}, greedy"] = batch.replace(
                target_temperature=torch.zeros(batch.size),
                draft_temperature=torch.zeros(batch.size),
            )
    return (
        found
        if small
        else found | {"direct": direct_pass(), "direct by block": direct_pass().replace(method=1)}
    )


def truncated(batch: Batch) -> Batch:
    """Some sequences by each limit, all with a mask, and log-probabilities."""
    turn = torch.arange(batch.size) % 3
    rows, size = batch.target_logits.shape
    words = torch.empty(rows, -(-size // 32), dtype=torch.int32)
    words.random_(-(2**31), 2**31, generator=generators.generator(size))
    return batch.replace(
        top_k=torch.where(turn == 0, size // 9, 0).int(),
        top_p=torch.where(turn == 1, 0.9, 1.0),
        min_p=torch.where(turn == 2, 0.01, 0.0),
        allowed=words,
        logprobs=1,
    )


def direct_pass(sequences: int = 3, size: int = 75_001) -> Batch:
    """p is q but at the drafted token, where it is 0: one try in 10,000 is kept."""
    affinity = Affinity.intersection(Vocabulary.identity(size))
    logits = generators.logits(sequences, size, seed=5)
    drafted = logits.softmax(1).sub(1e-4).abs().argmin(1)
    target = logits.repeat_interleave(2, 0)
    target[torch.arange(sequences) * 2, drafted] = -math.inf
    return Batch(
        target,
        logits,
        None,
        None,
        drafted,
        torch.arange(sequences + 1, dtype=torch.int32),
        torch.ones(sequences),
        torch.ones(sequences),
        torch.arange(sequences),
        torch.arange(sequences),
        affinity,
        1,
    )


def results(batch: Batch) -> list[Tensor]:
    rows = batch.draft_logits.shape[0]
    temperature = torch.full((rows,), float(batch.draft_temperature[0]))
    temperature[-1] = math.nan if rows > 1 else 1.0
    dynamic = (batch.dynamic_tokens, batch.dynamic_logits)
    affinity = batch.affinity
    seeds = torch.arange(rows)
    tokens, stats = torch.ops.rdk.draft(
        batch.draft_logits, temperature, seeds, seeds + 2**33, *affinity.by_draft, *dynamic
    )
    probs = torch.ops.rdk.redistribute(
        batch.draft_logits, temperature, *affinity.by_target, affinity.row_top, *dynamic
    )
    return [tokens, stats, probs, *torch.ops.rdk.verify(*batch.arguments())]


def gathered(dtype: torch.dtype) -> Tensor:
    """Logits of 331 tokens by rows of 517 elements, some tokens outside of the vocabulary."""
    weight = generators.logits(1000, 520, seed=1, dtype=dtype)[:, 3:]
    hidden = generators.logits(3, 517, seed=2, dtype=dtype)
    tokens = torch.randint(-20, 1020, (3, 331), generator=generators.generator(3))
    bias = generators.logits(1, 1000, seed=4, dtype=dtype)[0]
    logits: Tensor = torch.ops.rdk.gather_logits(hidden, weight, tokens, bias)
    return logits


def trees(small: bool) -> Trees:
    """Many small ones, or one whose rows are shared out between threads."""
    affinity = generators.affinity("virtual", 3000 if small else 75_001)
    return tree_generators.mixed_trees(affinity, [9] * 60 if small else [40], dynamic=5)


def overlapped(dtype: torch.dtype) -> list[Tensor]:
    """The acceptance rate, and its gradient."""
    found: list[Tensor] = []
    for operator in ("overlap", "overlap_backward"):
        arguments = generators.call(operator, dtype, V_t=SMALL)
        found += getattr(torch.ops.rdk, operator)(**arguments)
    return found


def main(path: str, size: str) -> None:
    """Writes {name with the number of threads: tensor}."""
    found: dict[str, Tensor] = {}
    small = size == "small"
    torch.set_num_threads(1)
    inputs, walked = batches(small), trees(small)
    for threads in THREADS:
        torch.set_num_threads(threads)
        for name, batch in inputs.items():
            for index, tensor in enumerate(results(batch)):
                found[f"{threads} {name} {index}"] = tensor
        for method in (0, 1):
            arguments = walked.replace(method=method).arguments()
            for index, tensor in enumerate(torch.ops.rdk.verify_tree(*arguments)):
                found[f"{threads} walked by {method} {index}"] = tensor
        for dtype in generators.DTYPES:
            found[f"{threads} gathered {dtype}"] = gathered(dtype).float()
            for index, tensor in enumerate(overlapped(dtype)):
                found[f"{threads} overlapped {dtype} {index}"] = tensor
    capability = str(rdk_cuda.build_info()["cpu_capability"])
    torch.save({"capability": capability, "results": found}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
