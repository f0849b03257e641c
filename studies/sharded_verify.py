"""`rdk_cuda.shards.verify` next to gathering the logits: bytes and time of two processes.

`python -m studies.sharded_verify` starts two ranks of a gloo group, each with half of the target's
logits, and makes both in turn. Every rank has one thread. Bytes are counted for more ranks, too,
and for two other ways: `by request`, in which a rank gets whole rows of its own sequences, and
`greedy`, which exchanges each row's largest logit and can only decode at temperature 0.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import rdk_cuda
from profiling.commands import Parser, run_command, write_found
from profiling.tables import table
from rdk_cuda import Affinity, Vocabulary, shards
from rdk_cuda.cli.arguments import natural

RANKS, SIZE, KEPT, LENGTH = 2, 128_256, 32_000, 3
BATCHES = (1, 64)
COUNTED = [(ranks, batch) for ranks in (2, 4, 8) for batch in (1, 64, 256)]


def ways(rank: int, batch: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Both, of the same step: drafts that are accepted about as often as not."""
    noise = torch.Generator().manual_seed(0)
    whole = 2 * torch.randn(batch, LENGTH + 1, SIZE, generator=noise)
    drafter = whole[:, :LENGTH, :KEPT] + torch.randn(batch, LENGTH, KEPT, generator=noise)
    affinity = Affinity.intersection(Vocabulary(torch.arange(KEPT), SIZE))
    draft = rdk_cuda.draft(drafter.bfloat16(), affinity, seeds=1, positions=0)
    width = SIZE // RANKS
    shard = whole[:, :, rank * width : (rank + 1) * width].bfloat16()

    def on_shards() -> torch.Tensor:
        return shards.verify(shard, draft, affinity).tokens

    def gathered() -> torch.Tensor:
        every = shard.new_empty((RANKS, *shard.shape))
        distributed.all_gather(list(every), shard)
        return rdk_cuda.verify(torch.cat(list(every), -1), draft, affinity).tokens

    return {"on shards": on_shards, "gathered": gathered}


def measure(rank: int, folder: str, rounds: int) -> None:
    """One rank; the first writes the seconds of each round."""
    torch.set_num_threads(1)
    where = f"file://{folder}/group"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    seconds: dict[str, list[float]] = {}
    for batch in BATCHES:
        calls = ways(rank, batch)
        tokens = [call() for call in calls.values()]
        assert torch.equal(*tokens)
        for _ in range(rounds):
            for name, call in calls.items():
                distributed.barrier()
                began = time.perf_counter()
                call()
                seconds.setdefault(f"{name} {batch}", []).append(time.perf_counter() - began)
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
    distributed.destroy_process_group()


def bytes_given(ranks: int, batch: int) -> dict[str, int]:
    """By the first rank, in the rounds of `rdk_cuda.shards.verify`; the third as if needed."""
    rows, width, chunks = batch * (LENGTH + 1), -(-SIZE // ranks), -(-SIZE // 1024) / ranks
    lacking = 2 * rows * (-width % 1024)  # what its last chunk has on the next rank
    sums = 8 * rows * (chunks + 1) + 8 * batch * (1 + chunks)
    return {
        "on shards": int(sums) + lacking,
        "gathered": 2 * rows * width,
        "by request": 2 * rows * width * (ranks - 1) // ranks,
        "greedy": 8 * rows,
    }


def run(options: argparse.Namespace) -> int:
    """Write the results; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=measure, args=(rank, folder, options.rounds))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        seconds = json.loads(Path(folder, "seconds.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = [
        {
            "batch": batch,
            "way": way,
            "milliseconds": 1e3 * statistics.median(seconds[f"{way} {batch}"]),
            "fastest": 1e3 * min(seconds[f"{way} {batch}"]),
        }
        for batch in BATCHES
        for way in ("on shards", "gathered")
    ]
    counted = [
        {"ranks": ranks, "batch": batch, **bytes_given(ranks, batch)} for ranks, batch in COUNTED
    ]
    shown = [[str(r["batch"]), r["way"], f"{r['milliseconds']:.1f}"] for r in rows]
    print(table(["B", "verify", "ms, median"], shown), end="\n\n")
    print(
        table(
            ["ranks", "B", *list(counted[0])[2:]],
            [[f"{n:,}" for n in r.values()] for r in counted],
            "r",
        )
    )
    write_found(options.output, rounds=options.rounds, rows=rows, bytes=counted)
    return 0


def main() -> int:
    """The command."""
    command = Parser(prog="python -m studies.sharded_verify", description=__doc__)
    command.add_argument("--rounds", type=natural, default=15, help="of each (default: 15)")
    command.add_argument("--output", type=Path, help="a JSON file for the results")
    return run_command(command, run, None)


if __name__ == "__main__":
    sys.exit(main())
