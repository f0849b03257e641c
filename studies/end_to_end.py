"""Where the time of a decoding step goes, with PyTorch's sampling and with ours.

`python -m studies.end_to_end --device cpu --size serving` takes the steps of
`rdk_cuda.decoding.SpeculativeDecoder` with a watch on their parts. Passes, sampling and caches are
the real ones. Random models agree on nothing, and how much of the target a verification reads
depends on how far it comes, so other logits are verified in place of the target's, made so that
about 1.2 of 4 drafts are accepted, as in the demo. Each row is a head with a way to sample, at a
batch:

    size, models, target_size     which models, and V_t
    batch, draft_length, context  sequences, K, and tokens in the models' caches
    head, method, keep            of the drafter
    head_rows, sampling           V_d; "PyTorch" or "rdk_cuda"
    parts, shares                 seconds of each part, medians of `rounds`; and of their sum
    step_seconds                  of a whole step, median
    run, date, load ...           as in profiling/results.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from profiling.bench import eager
from profiling.bench.workloads import VIRTUAL as VIRTUAL_ROWS
from profiling.bench.workloads import affinity_of, target_like
from profiling.commands import (
    Parser,
    Progress,
    add_measuring,
    measure_rows,
    page_of,
    run_columns,
    run_command,
)
from profiling.machine import now
from profiling.peers.samplers import Decided, gathered
from profiling.results import Row
from profiling.tables import figure, table
from rdk_cuda import Affinity
from rdk_cuda.cli.arguments import natural, refuse_missing
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.stages.pruning import FULL, PRUNED, VIRTUAL

from .random_models import SHAPES, make_models

DRAFT_LENGTH, LAST_TOKEN = 4, 1
NOISE = 1.17  # of `target_like`: each draft is accepted with a probability of about 0.56
TARGET_LAYERS = {"cpu": 2, "cuda": 32}
BODY, HEAD, DRAFT = "drafter body", "drafter head", "draft"
TARGET, VERIFY, CACHE, UNTIMED = "target", "verify", "cache", "untimed"
PARTS = (BODY, HEAD, DRAFT, TARGET, VERIFY, CACHE)


@dataclass(frozen=True)
class Head:
    """A drafter's LM head, by the calibration method that it belongs to and the share it keeps."""

    method: str
    keep: float

    @property
    def name(self) -> str:
        """The head's name, to read."""
        return self.method if self.method == FULL else f"{self.method}, {100 * self.keep:.4g} %"

    def rows(self, vocabulary: int) -> int:
        """V_d, with virtual tokens."""
        return round(self.keep * vocabulary) + (VIRTUAL_ROWS if self.method == VIRTUAL else 0)

    def affinity(self, vocabulary: int) -> Affinity:
        """An affinity of its size; which tokens its rows lead to does not change what it costs."""
        sampler = "virtual" if self.method == VIRTUAL else "pruned"
        return affinity_of(sampler, vocabulary, self.rows(vocabulary))


HEADS = (
    Head(FULL, 1.0),
    *(Head(method, keep) for keep in (0.25, 0.0625) for method in (PRUNED, VIRTUAL)),
)


class LapTimer:
    """Seconds between laps."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu, self.running = device.type == "cuda", False
        self.seconds: dict[str, float] = defaultdict(float)
        self.last = 0.0

    def start(self) -> None:
        """Start to measure."""
        self.running, self.seconds = True, defaultdict(float)
        self.lap(UNTIMED)

    def lap(self, part: str) -> None:
        """Count the time since the last lap for a part."""
        if not self.running:
            return
        if self.on_gpu:
            torch.cuda.synchronize()
        before, self.last = self.last, time.perf_counter()
        self.seconds[part] += self.last - before

    def stop(self) -> dict[str, float]:
        """Seconds of each part."""
        self.running = False
        return {part: seconds for part, seconds in self.seconds.items() if part != UNTIMED}


class WithOperators:
    """Both halves of sampling a step, one draft at a time, by rdk_cuda.draft and .verify."""

    def __init__(self, affinity: Affinity, batch: int) -> None:
        self.affinity = affinity
        self.seeds = torch.arange(batch, device=affinity.device)

    def begin(self, position: int) -> None:
        """Begin a new step."""
        self.drafts: list[rdk_cuda.Draft] = []
        self.link: dict[str, Any] = {"seeds": self.seeds, "positions": position}

    def draft(self, logits: Tensor) -> Tensor:
        """Tokens `[B]` of logits `[B, V_d]`."""
        self.drafts.append(rdk_cuda.draft(logits, self.affinity, **self.link))
        self.link = {"after": self.drafts[-1]}
        return self.drafts[-1].tokens[:, 0]

    def verify(self, target_logits: Tensor) -> Decided:
        """Decide a step from target logits `[B, K + 1, V_t]`."""
        verified = rdk_cuda.verify(target_logits, self.drafts, self.affinity)
        return verified.tokens, verified.num_accepted


class WithTorch:
    """The fewest operations of PyTorch (peers.gathered), q as wide as the vocabulary."""

    def __init__(self, affinity: Affinity, batch: int) -> None:
        self.link = gathered(affinity)
        self.ones = torch.ones(batch, device=affinity.device)

    def begin(self, position: int) -> None:
        """Begin a new step."""
        self.tokens: list[Tensor] = []
        self.q: list[Tensor] = []

    def draft(self, logits: Tensor) -> Tensor:
        """Tokens `[B]` of logits `[B, V_d]`."""
        token, q = self.link(logits, self.ones)
        self.tokens.append(token)
        self.q.append(q)
        return token

    def verify(self, target_logits: Tensor) -> Decided:
        """Decide a step from target logits `[B, K + 1, V_t]`."""
        q, tokens = torch.stack(self.q, 1), torch.stack(self.tokens, 1)
        return eager.verify(target_logits, q, tokens, self.ones)


SAMPLINGS: dict[str, type[WithOperators] | type[WithTorch]] = {
    "PyTorch": WithTorch,
    "rdk_cuda": WithOperators,
}
Variant = tuple[Head, str]  # and a way to sample
VARIANTS: tuple[Variant, ...] = tuple((head, by) for head in HEADS for by in SAMPLINGS)


class Steps:
    """Takes steps of every variant from the same context, which every step leaves as it was.

    Args:
        models: a target and a drafter with the same vocabulary.
    """

    def __init__(self, models: tuple[Any, Any], context: int) -> None:
        target, drafter = models
        full = drafter.get_output_embeddings().weight.detach()
        self.device, self.vocabulary = full.device, len(full)
        self.watch = LapTimer(self.device)
        self.context = context
        self.target = HuggingFaceModel(target, return_hidden=True)
        rows = {head: head.rows(len(full)) for head in HEADS}
        self.drafters = {  # a pruned head has memory of its own
            head: HuggingFaceModel(drafter, head=full if n == len(full) else full[:n].clone())
            for head, n in rows.items()
        }
        self.affinities = {head: head.affinity(len(full)).to(self.device) for head in HEADS}
        self.spreads = {head: gathered(each) for head, each in self.affinities.items()}
        for model, part in ((drafter, BODY), (target, TARGET)):
            body = model.base_model
            body.register_forward_pre_hook(lambda *_: self.watch.lap(CACHE))
            body.register_forward_hook(lambda *_, part=part: self.watch.lap(part))

    def begin(self, batch: int) -> None:
        """Read the context in all models, for `batch` sequences."""
        self.batch, self.turn = batch, 0
        self.random = torch.Generator(self.device).manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (batch, self.context)).tolist()
        for model in (self.target, *self.drafters.values()):
            model.reset(batch)
            model.feed(ids, [0] * batch)
        self.samplings = {
            (head, name): make(affinity, batch)
            for head, affinity in self.affinities.items()
            for name, make in SAMPLINGS.items()
        }

    @torch.no_grad()
    def take(self, variant: Variant) -> dict[str, float]:
        """Seconds of each part."""
        drafter, target, watch = self.drafters[variant[0]], self.target, self.watch
        sampling = self.samplings[variant]
        self.turn += 1
        sampling.begin(self.context + self.turn)
        drafted: list[list[int]] = [[LAST_TOKEN] for _ in range(self.batch)]
        seen = []
        watch.start()
        for _ in range(DRAFT_LENGTH):
            logits = drafter.feed([each[-1:] for each in drafted], [1] * self.batch).logits[:, 0]
            watch.lap(HEAD)
            for each, token in zip(drafted, sampling.draft(logits).tolist(), strict=True):
                each.append(token)
            watch.lap(DRAFT)
            seen.append(logits)
        logits = target.feed(drafted, [DRAFT_LENGTH + 1] * self.batch).logits
        watch.lap(TARGET)
        verified = self._verified_in_place_of(logits, seen, variant[0])
        watch.lap(UNTIMED)
        sampling.verify(verified)[1].tolist()
        watch.lap(VERIFY)
        for model in (drafter, target):
            model.rollback([self.context] * self.batch)
        watch.lap(CACHE)
        return watch.stop()

    def _verified_in_place_of(self, logits: Tensor, seen: list[Tensor], head: Head) -> Tensor:
        ones = torch.ones(self.batch, device=self.device)
        q = torch.stack([self.spreads[head](each, ones)[1] for each in seen])
        made = target_like(q, NOISE, self.random)
        return made.to(logits.dtype).view(logits.shape)


def rows(arguments: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """The rows, batch by batch."""
    device = torch.device(arguments.device)
    layers = arguments.target_layers or TARGET_LAYERS[arguments.device]
    progress.show(f"making models of size {arguments.size}")
    models = make_models(arguments.size, device, layers)
    steps = Steps(models, arguments.context)
    dtype = str(models[0].dtype).removeprefix("torch.")
    common: Row = {
        "size": arguments.size,
        "models": f"random Llama layers, d {SHAPES[arguments.size]['hidden_size']:,}, target of "
        f"{layers} and drafter of one, one embedding and head for all, {dtype}",
        "target_size": steps.vocabulary,
        "draft_length": DRAFT_LENGTH,
        "context": arguments.context,
        "rounds": arguments.rounds,
        **run_columns(parser(), arguments),
    }
    for batch in arguments.batch:
        progress.show(f"batch {batch}: reading the context")
        steps.begin(batch)
        times: dict[Variant, list[dict[str, float]]] = defaultdict(list)
        for turn in range(arguments.rounds + 1):  # the first does not count
            progress.show(f"batch {batch}: round {turn} of {arguments.rounds}")
            for each in VARIANTS:
                seconds = steps.take(each)
                times[each] += [seconds] if turn else []
        common |= {"batch": batch, "date": now(), "load": os.getloadavg()[0]}
        for (head, sampling), taken in times.items():
            parts = {part: statistics.median(each[part] for each in taken) for part in taken[0]}
            yield {
                "head": head.name,
                "method": head.method,
                "keep": head.keep,
                "head_rows": head.rows(steps.vocabulary),
                "sampling": sampling,
                "parts": parts,
                "shares": {name: each / sum(parts.values()) for name, each in parts.items()},
                "step_seconds": statistics.median(sum(each.values()) for each in taken),
                **common,
            }


def preamble(row: Row) -> str:
    """What is measured and what is computed."""
    return (
        f"Models: {row['models']}; V_t {row['target_size']:,}, {row['context']} tokens of context, "
        f"K = {row['draft_length']}, temperature 1. Milliseconds, medians of {row['rounds']} "
        "rounds, all rows in turn; the shares in brackets are those of the sum of the parts. "
        f"{BODY} and {HEAD} are {row['draft_length']} passes; {CACHE} is what a cache costs that "
        "rolls back by sequence."
    )


def section(rows: Sequence[Row]) -> list[str]:
    """One batch."""
    titles = "", "head rows", "sampling", *PARTS, "step"
    return [f"## Batch {rows[0]['batch']}", table(titles, map(cells, rows), "lrlr")]


def cells(row: Row) -> list[str]:
    """In the order of the titles."""
    parts, shares = row["parts"], row["shares"]
    times = [f"{figure(1000 * parts[p])} ({shares[p]:.0%})" if p in parts else "" for p in PARTS]
    return [
        row["head"],
        f"{row['head_rows']:,}",
        row["sampling"],
        *times,
        figure(1000 * row["step_seconds"]),
    ]


page = partial(page_of, "A decoding step and its parts", preamble, "batch", section)


def parser() -> Parser:
    """The command line."""
    summary = (__doc__ or "").splitlines()[0]
    parser = Parser(prog="python -m studies.end_to_end", description=summary)
    add_measuring(parser, "JSON file to append rows to; next to it the same rows as tables")
    add = parser.add_argument
    add(
        "--size",
        choices=tuple(SHAPES),
        required=True,
        help="tiny: whether it runs; serving: d 4,096 and V 128,256, about 4 GB on the CPU and "
        "18 GB on a GPU",
    )
    layers = "of the target (2 on the CPU, 32 on a GPU, as Llama 3.1 8B has)"
    add("--target-layers", type=natural, metavar="N", help=layers)
    add("--batch", type=natural, nargs="+", default=[1, 8], metavar="B", help="(1 8)")
    add("--context", type=natural, default=256, metavar="N", help="tokens (%(default)s)")
    add("--rounds", type=natural, default=15, metavar="N", help="(%(default)s)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """All batches, one after the other."""
    refuse_missing(["transformers"])
    return measure_rows(arguments, "end_to_end", lambda shown: rows(arguments, shown), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
