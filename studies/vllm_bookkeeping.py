"""What vLLM's worker itself spends on a step, besides models and operators.

`python -m studies.vllm_bookkeeping` measures on the CPU what model runner V1 asks of the worker's
`Requests` in one step with `DRAFTS` drafts, and counting what was verified. Next to it is what the
worker once did: a list of each request's whole context for every draft.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.dynamic_tokens import KeptContexts
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm.metrics import Counters
from rdk_cuda.integrations.vllm.requests import Requests

RESULTS = ROOT / "profiling" / "results" / "vllm" / "bookkeeping.json"

DRAFTS, WINDOW, COLUMNS, SMALLEST = 4, 256, 64, 900
SIZES = ((32, 512), (256, 512), (256, 4096))  # requests, and the longest context
VOCABULARY = (32_768, 128_256)  # the drafter's, the target's
ROUNDS = 21


class Running:
    """Requests of which each has read some tokens, and a step that decides and drafts more.

    Args:
        batch: how many. context: the most tokens of one.
    """

    def __init__(self, batch: int, context: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        tokens = generator.integers(0, SMALLEST, (batch + 3, context), dtype=np.int32)
        lengths = generator.integers(1, context + 1, batch + 3, dtype=np.int32)
        prompts = generator.integers(1, lengths + 1, dtype=np.int32)
        names = [str(b) for b in range(batch)]
        asked = SimpleNamespace(seed=None, structured_outputs=None)
        self.batch = SimpleNamespace(
            req_ids=names,
            token_ids_cpu=tokens,
            num_tokens_no_spec=lengths,
            num_prompt_tokens=prompts,
            num_computed_tokens_cpu=lengths - 1,
        )
        runner = SimpleNamespace(
            input_batch=self.batch,
            requests={name: SimpleNamespace(sampling_params=asked) for name in names},
            vllm_config=SimpleNamespace(model_config=SimpleNamespace(seed=0)),
            max_model_len=context + DRAFTS,
        )
        self.requests = Requests(runner, max_scheduled=10**6, longest_prefill=0)
        count = torch.from_numpy(generator.integers(1, DRAFTS + 2, (batch, 1)))
        decided = torch.from_numpy(generator.integers(0, SMALLEST, (batch, DRAFTS + 1)))
        steps = torch.arange(DRAFTS + 1, device=decided.device)
        self.decided = decided.masked_fill(steps >= count, -1).int()
        self.drafts = list(torch.from_numpy(generator.integers(0, SMALLEST, (DRAFTS, batch))))

    def step(self, window: int) -> list[KeptContexts]:
        """All that the worker asks for in one step; the contexts of each draft."""
        requests, ids = self.requests, self.batch.req_ids
        requests.begin_step(dict.fromkeys(ids, DRAFTS + 1), has_grammar=False)
        slots = requests.take_slots()
        positions = requests.positions([DRAFTS] * len(ids))
        if requests.forbidden_drafts(slots, [DRAFTS] * len(ids), positions):
            raise AssertionError("no request has a grammar")
        device = self.decided.device
        requests.seeds(device)
        requests.decide(self.decided, torch.from_numpy(positions))
        contexts, stored = [], torch.stack(self.drafts, 1)
        for drawn in self.drafts:
            contexts.append(requests.contexts(window, stored))
            requests.seeds(device)
            requests.drafts.append(drawn)
        return contexts

    def lists(self, drafted: int) -> list[list[int]]:
        """Each request's tokens, one after the other, before a draft."""
        return [
            [
                *self.batch.token_ids_cpu[b, : self.batch.num_tokens_no_spec[b]].tolist(),
                *(token for token in self.decided[b].tolist() if token >= 0),
                *(int(drawn[b]) for drawn in self.drafts[:drafted]),
            ]
            for b in range(len(self.batch.req_ids))
        ]


def forms(batch: int, context: int) -> dict[str, Callable[[], Any]]:
    """The bookkeeping of one step, by what it is called in a row."""
    running = Running(batch, context)
    vocabulary = Vocabulary(range(VOCABULARY[0]), target_size=VOCABULARY[1])
    affinity = Affinity.intersection(vocabulary)
    arena = DraftArena(affinity, batch, DRAFTS, dtype=torch.bfloat16, dynamic_width=COLUMNS)
    counters = Counters(vocabulary, arena.device)
    counters.active = True
    drafts = torch.stack(running.drafts, 1).flatten()
    accepted = (running.decided >= 0).sum(1) - 1

    def lists() -> None:
        for drafted in range(DRAFTS):
            whole = running.lists(drafted)
            longest = max(map(len, whole))
            padded = [[-1] * (longest - len(one)) + one for one in whole]
            torch.tensor(padded, dtype=torch.int64, device=arena.device)

    def counted() -> None:
        running.step(WINDOW)
        layout = arena.layout([DRAFTS] * batch, range(batch))
        counters.count(arena, drafts, layout, accepted, "token")

    return {
        "lists of whole contexts": lists,
        "windows": lambda: running.step(WINDOW),
        "windows and counters": counted,
    }


def measure(batch: int, context: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each form: the median of its milliseconds a step."""
    rows = []
    for form, step in forms(batch, context).items():
        print(f"{batch} requests, {context:,} tokens, {form} ...", file=sys.stderr)
        times = []
        step()
        for _ in range(rounds):
            start = time.perf_counter()
            step()
            times.append(1000 * (time.perf_counter() - start))
        rows.append({"batch": batch, "context": context, "form": form, "median_ms": median(times)})
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    rows = [row for size in SIZES for row in measure(*size, ROUNDS)]
    write_found(options.output, drafts=DRAFTS, window=WINDOW, rows=rows)
    for row in rows:
        print(f"{row['batch']} × {row['context']:,}, {row['form']}: {row['median_ms']:.2f} ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.vllm_bookkeeping", description=__doc__)
    command.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
