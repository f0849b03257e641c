"""Processes of a gloo group, each of which has its columns of the target's logits."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

import rdk_cuda

PATIENCE = 60.0  # seconds for what takes a few


def columns_of(rank: int, ranks: int, logits: Tensor, more: int = 0) -> Tensor:
    """As an engine cuts a head that it has padded: as many for each rank, NaN behind the last."""
    width = -(-logits.shape[-1] // ranks) + more
    padded = torch.nn.functional.pad(
        logits, (0, width * ranks - logits.shape[-1]), value=float("nan")
    )
    return padded[..., rank * width : (rank + 1) * width]


def start(
    work: Callable[[int, int], Any], ranks: int, folder: Path, timeout: float = PATIENCE
) -> list[Any]:
    """What `work(rank, ranks)` returns or raises in each process of a group of this timeout."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "rdk_cuda", __name__])
    results = [context.SimpleQueue() for _ in range(ranks)]
    processes = [
        context.Process(
            target=_run, args=(work, rank, ranks, folder / "group", timeout, results[rank])
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
    assert not alive, f"{len(alive)} ranks hang"
    return [None if result.empty() else result.get() for result in results]


def _run(
    work: Callable[[int, int], Any],
    rank: int,
    ranks: int,
    file: Path,
    timeout: float,
    result: SimpleQueue[Any],
) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(str(file), ranks)
    limit = timedelta(seconds=timeout)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    try:
        result.put(work(rank, ranks))
    except Exception as error:
        result.put(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    os._exit(0)  # the group may have lost ranks


def last_rank_dies(rank: int, ranks: int) -> str:
    """Ends the last rank's process; what the others are told, and after how many seconds."""
    import time

    from rdk_cuda import shards

    if rank == ranks - 1:
        for other in range(rank):
            distributed.recv(torch.zeros(1), other)  # who has not joined yet fails to join
        os._exit(1)
    with suppress(RuntimeError):  # it may be gone before this is said to have arrived
        distributed.send(torch.zeros(1), ranks - 1)
    began = time.monotonic()
    copied = rdk_cuda.Draft.without_distribution(torch.tensor([[3, 1]]), seeds=7, positions=12)
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(2048 * ranks))
    try:
        shards.verify(torch.zeros(1, 3, 2048), copied, affinity)
    except RuntimeError as error:
        return f"RuntimeError after {time.monotonic() - began:.1f} s: {error}"
    return "no error"
