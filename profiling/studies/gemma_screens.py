"""How much acceptance screened tokens bring back for a real model, Gemma 3 270M (V_t 262,144).

`python -m profiling.studies.gemma_screens` drafts with the model itself, which then sees the last
40 to 47 tokens alone. Its text is the source code, and the docstrings, of Python's standard
library. Kept tokens, the metric of the screen and its rank and width come from some documents,
all figures from others. Acceptance is exact, `sum_x min(p, q)`, or for greedy decoding whether the
drafted token is the target's argmax, and nothing is trained. Needs the extra `[gemma]`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo import gemma
from examples.demo.corpus import (
    docstrings,
    held_out_files,
    read_text,
    standard_library,
    training_files,
)
from rdk_cuda import ScreenedTokens, SuccessorCounts, SuccessorTable, Vocabulary
from rdk_cuda.calibration import low_rank_factors, screens_within
from rdk_cuda.cli.arguments import natural
from rdk_cuda.dynamic_tokens import distinct_tokens, recent_and_successors
from rdk_cuda.evaluation import Bootstrap, recovered_share
from rdk_cuda.files import write_json

from ..commands import Parser, run_command
from ..machine import describe, now

WINDOW, CONTEXT, RUN = 384, 40, 8
CALIBRATED, HELD_OUT, COUNTED = 20, 14, 250
KEEPS, TEMPERATURES, BUDGETS = (0.125, 0.0625, 0.03), (1.0, 0.7, 0.0), (0.05, 0.1)
BATCHES = (1, 8)
_LEAST_WIDTH = 512
_BLOCK = 64  # positions whose logits are held at a time

Row = dict[str, Any]


@dataclass
class Recorded:
    """Final hidden states of both models at some positions, documents one after the other.

    Attributes:
        target, drafter: `[documents, positions, d]`.
        contexts: `[documents, positions, 256]`, the tokens up to there, -1 before the first.
    """

    target: Tensor
    drafter: Tensor
    contexts: Tensor

    def every(self, step: int) -> Recorded:
        """Some of the positions."""
        parts = (self.target, self.drafter, self.contexts)
        return Recorded(*(part[:, ::step] for part in parts))


def documents(kind: str) -> Iterator[str]:
    """Texts of the standard library, in an order that looks random and stays the same."""
    root = standard_library()
    names = [file.relative_to(root).as_posix() for file in (*training_files(), *held_out_files())]
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = read_text(root / name)
        yield docstrings(text) if kind == "prose" else text


@torch.no_grad()
def record(model: Any, windows: Tensor) -> tuple[Tensor, Recorded]:
    """The target's states `[documents, WINDOW, d]`, and both models' at 64 positions of each."""
    first = windows[:, :1]
    target = torch.cat([model.base_model(part).last_hidden_state for part in windows.split(4)])
    generator = torch.Generator().manual_seed(2)
    starts = torch.stack(
        [torch.randperm((WINDOW - 64) // RUN - 1, generator=generator)[:8] for _ in windows]
    )
    starts = 64 + RUN * starts.sort(1).values
    drafter = []
    for ids, begin, places in zip(windows, first, starts, strict=True):
        runs = [torch.cat([begin, ids[s - CONTEXT + 1 : s + RUN]]) for s in places.tolist()]
        states = model.base_model(torch.stack(runs)).last_hidden_state
        drafter.append(states[:, -RUN:].flatten(0, 1))
        print(f"{len(drafter)} of {len(windows)} documents", end="\r", file=sys.stderr, flush=True)
    positions = (starts[:, :, None] + torch.arange(RUN)).flatten(1)
    padded = torch.nn.functional.pad(windows[:, 1:], (256, 0), value=-1)
    contexts = padded.unfold(1, 256, 1).gather(1, positions[:, :, None].expand(-1, -1, 256))
    chosen = target.gather(1, positions[:, :, None].expand(-1, -1, target.shape[2]))
    return target, Recorded(chosen, torch.stack(drafter), contexts)


class Measured:
    """Acceptance at recorded positions: of the full drafter, the pruned one, and with columns."""

    def __init__(
        self, head: Tensor, at: Recorded, vocabulary: Vocabulary, temperature: float
    ) -> None:
        kept, pruned = vocabulary.kept, vocabulary.pruned
        self.place = torch.full((vocabulary.target_size + 1,), -1)
        self.place[pruned] = torch.arange(len(pruned))
        self.shape, self.blocks, self.tops = at.target.shape[:2], [], []
        full, plain = [], []
        states = (each.flatten(0, 1).split(_BLOCK) for each in (at.target, at.drafter))
        for target, drafter in zip(*states, strict=True):
            p = ((target @ head.T) / temperature).softmax(1)
            z = (drafter @ head.T) / temperature
            e = (z - z.amax(1, keepdim=True)).exp_()
            full.append(torch.minimum(p, e / e.sum(1, keepdim=True)).sum(1))
            own = p[:, kept], e[:, kept]
            plain.append(torch.minimum(own[0], own[1] / own[1].sum(1, keepdim=True)).sum(1))
            self.blocks.append((*own, p[:, pruned], e[:, pruned]))
            self.tops.append((p.argmax(1), e.argmax(1), kept[own[1].argmax(1)]))
        self.full, self.pruned = (torch.cat(x).view(self.shape) for x in (full, plain))

    def acceptance(self, tokens: Tensor) -> Tensor:
        """`[documents, positions]` with `[n, C]` offered tokens, -1 for none."""
        rates = []
        columns = self.place[tokens.long().where(tokens >= 0, len(self.place) - 1)]
        parts = zip(self.blocks, columns.split(_BLOCK), strict=True)
        for (p, e, p_pruned, e_pruned), at in parts:
            offered = e_pruned.gather(1, at.clamp_min(0)).masked_fill(at < 0, 0)
            total = (e.sum(1) + offered.sum(1))[:, None]
            wanted = p_pruned.gather(1, at.clamp_min(0))
            more = torch.minimum(wanted, offered / total).sum(1)
            rates.append(torch.minimum(p, e / total).sum(1) + more)
        return torch.cat(rates).view(self.shape)


class Greedy:
    """The same at temperature 0, from what is measured at another."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        target, full, own = (torch.cat(tops) for tops in zip(*measured.tops, strict=True))
        self.target, self.own = target, own
        self.full, self.pruned = (
            (tops == target).double().view(measured.shape) for tops in (full, own)
        )

    def acceptance(self, tokens: Tensor) -> Tensor:
        """As `Measured.acceptance`: 1 where the drafted token is the target's argmax, else 0."""
        measured, drafted = self.measured, []
        columns = measured.place[tokens.long().where(tokens >= 0, len(measured.place) - 1)]
        parts = (x.split(_BLOCK) for x in (columns, tokens.long(), self.own))
        for (_, e, _, e_pruned), at, names, own in zip(measured.blocks, *parts, strict=True):
            offered = e_pruned.gather(1, at.clamp_min(0)).masked_fill(at < 0, -1)
            best = offered.max(1)
            likeliest = names.gather(1, best.indices[:, None])[:, 0]
            drafted.append(likeliest.where(best.values > e.amax(1), own))
        return (torch.cat(drafted) == self.target).double().view(measured.shape)


def measured(
    head: Tensor, at: Recorded, vocabulary: Vocabulary, temperature: float
) -> Measured | Greedy:
    """Acceptance at a temperature, 0 for greedy decoding."""
    if temperature == 0:
        return Greedy(Measured(head, at, vocabulary, 1.0))
    return Measured(head, at, vocabulary, temperature)


def offers(screen: ScreenedTokens, at: Recorded) -> Tensor:
    """`[n, C]` tokens that a screen offers."""
    hidden = at.drafter.flatten(0, 1).split(_BLOCK)
    return torch.cat([screen([], hidden=states) for states in hidden])


def measure(kind: str, model: Any, tokenizer: Any) -> Iterator[Row]:
    """Rows of one kind of text."""
    head = model.get_output_embeddings().weight.detach()
    ids = (tokenizer(text)["input_ids"] for text in documents(kind))
    long = (tokens for tokens in ids if len(tokens) >= WINDOW + 200)
    windows = list(islice(long, CALIBRATED + HELD_OUT))
    begun = torch.tensor([[w[0], *w[100 : 100 + WINDOW - 1]] for w in windows])
    states, recorded = record(model, begun)
    calibration, held_out = (
        Recorded(*(x[own] for x in (recorded.target, recorded.drafter, recorded.contexts)))
        for own in (slice(CALIBRATED), slice(CALIBRATED, None))
    )
    counts = SuccessorCounts(len(head))
    for tokens in islice(ids, COUNTED):
        counts.add(tokens)
    some = states[:CALIBRATED, 64::2].flatten(0, 1).split(_BLOCK)
    mean_probs = torch.stack([(part @ head.T).softmax(1).sum(0).double() for part in some]).sum(0)
    mean_probs /= mean_probs.sum()
    seen = calibration.drafter.flatten(0, 1).double()
    for keep in KEEPS:
        vocabulary = Vocabulary.most_likely(mean_probs, round(keep * len(head)))
        rows = measure_pruning(
            head, vocabulary, seen.T @ seen / len(seen), mean_probs, counts, calibration, held_out
        )
        yield from ({"text": kind, "keep": keep, **row} for row in rows)


def measure_pruning(
    head: Tensor,
    vocabulary: Vocabulary,
    metric: Tensor,
    mean_probs: Tensor,
    counts: SuccessorCounts,
    calibration: Recorded,
    held_out: Recorded,
    against: Recorded | None = None,
) -> Iterator[Row]:
    """Rows of one set of kept tokens: at each budget the screen that calibration chooses.

    The loss is that against the full drafter, or against another one's: `against`.
    """
    successors = SuccessorTable.from_counts(counts, vocabulary, width=128)
    source = recent_and_successors(vocabulary, successors, width=128)
    named = source(held_out.contexts.flatten(0, 1))
    few = calibration.every(4)
    allowed = torch.zeros(len(head), dtype=torch.bool).index_fill(0, vocabulary.pruned, True)
    near = {t: measured(head, few, vocabulary, t) for t in TEMPERATURES}
    chosen = best_screens(head, vocabulary, metric, mean_probs, few, near)
    del near
    for temperature in TEMPERATURES:
        far = measured(head, held_out, vocabulary, temperature)
        full = far.full
        if against is not None:
            full = measured(head, against, vocabulary, temperature).full
        bootstrap = Bootstrap(list(range(len(full))), seed=0)
        base: Row = {
            "temperature": temperature,
            "positions": full.numel(),
            "full": bootstrap.mean(full),
            "pruned": bootstrap.mean(far.pruned),
        }
        tokens: list[tuple[Row, Tensor]] = [({"method": "recent and successor tokens"}, named)]
        for batch in BATCHES:
            for budget in BUDGETS:
                screen = chosen[batch, budget, temperature]
                about: Row = {"batch": batch, "budget": budget}
                about |= {"rank": screen.rank, "width": screen.width}
                if screen.candidates:
                    about |= {"candidates": screen.candidates, "second_rank": screen.second_rank}
                offered = offers(screen, held_out)
                both = torch.cat([named, offered], dim=1)
                all_of_them = distinct_tokens(both, allowed, both.shape[1])
                tokens.append(({"method": "screened tokens", **about}, offered))
                tokens.append(({"method": "all", **about}, all_of_them))
        for about, columns in tokens:
            share = recovered_share(bootstrap, far.acceptance(columns), far.pruned, full)
            yield {**base, **about, "recovered": share}


def best_screens(
    head: Tensor,
    vocabulary: Vocabulary,
    metric: Tensor,
    mean_probs: Tensor,
    at: Recorded,
    measured: dict[float, Measured | Greedy],
) -> dict[tuple[int, float, float], ScreenedTokens]:
    """By batch, budget and temperature the screen that is accepted most at some positions."""
    weight = head.bfloat16(), None
    rank = min(512, head.shape[1])
    factors = low_rank_factors(weight, vocabulary, metric, rank, mean_probs=mean_probs)
    best: dict[tuple[int, float, float], tuple[float, ScreenedTokens]] = {}
    for batch, budget in itertools.product(BATCHES, BUDGETS):
        for screen in screens_within(
            budget, weight, vocabulary, metric, mean_probs, batch=batch, factors=factors
        ):
            if screen.width < _LEAST_WIDTH:
                continue
            tokens = offers(screen, at)
            for temperature, known in measured.items():
                rate = float(known.acceptance(tokens).mean())
                key = batch, budget, temperature
                if key not in best or rate > best[key][0]:
                    best[key] = rate, screen
    return {key: screen for key, (_, screen) in best.items()}


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    gemma.refuse_missing()
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    print(gemma.terms(), file=sys.stderr)
    if options.threads:
        torch.set_num_threads(options.threads)
    models, rows = gemma.load_gemma(), []
    about = {"run": now(), "model": gemma.NAME, **describe(torch.device("cpu"))}
    for kind in ("code", "prose"):
        for row in measure(kind, models.target, models.tokenizer):
            rows.append(row)
            print(line(row), flush=True)
            if options.output is not None:
                write_json({**about, "rows": rows}, options.output)


def line(row: Row) -> str:
    """A row on a terminal."""
    value, low, high = (100 * x for x in row["recovered"] or [float("nan")] * 3)
    words = [f"{row['text']}, {row['keep']:.1%} kept, T = {row['temperature']}: {row['method']}"]
    if "budget" in row:
        words.append(f"({row['budget']:.0%} of the bytes at batch {row['batch']}:")
        words.append(f"rank {row['rank']}, {row['width']} tokens)")
    return " ".join([*words, f"{value:.1f} [{low:.1f}, {high:.1f}]"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.gemma_screens", description=__doc__)
    command.add_argument("--threads", type=natural, metavar="N", help="torch's own number")
    command.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
