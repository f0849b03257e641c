"""How much acceptance screened tokens bring back for a real model, Gemma 3 270M (V_t 262,144).

`python -m profiling.studies.gemma_screens` drafts with the model itself, which then sees the last
40 to 47 tokens alone. Its text is the source code, and the docstrings, of Python's standard
library. Kept tokens, the metric of the screen and its sizes come from some documents, all figures
from others. Acceptance is exact, `sum_x min(p, q)`, or for greedy decoding whether the
drafted token is the target's argmax, and nothing is trained. Needs the extra `[gemma]`.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import torch
from torch import Tensor

from examples.demo.corpus import (
    docstrings,
    held_out_files,
    read_text,
    standard_library,
    training_files,
)
from rdk_cuda import ScreenedTokens, SuccessorCounts, SuccessorTable, Vocabulary
from rdk_cuda.calibration import low_rank_factors, screens_within
from rdk_cuda.cli.models import Models
from rdk_cuda.dynamic_tokens import distinct_tokens, recent_and_successors
from rdk_cuda.dynamic_tokens.sources import is_pruned
from rdk_cuda.evaluation import Bootstrap, recovered_share

from ..commands import Parser, run_command
from .gemma_acceptance import (
    KEEPS,
    TEMPERATURES,
    Greedy,
    Measured,
    Recorded,
    Remainder,
    Row,
    VirtualTokens,
    add_options,
    mean_probs_at,
    measure_kinds,
    measured,
    metric,
    offers,
    span,
    successor_counts,
    with_best_offset,
)

WINDOW, CONTEXT, RUN = 384, 40, 8
CALIBRATED, HELD_OUT, COUNTED = 20, 14, 250
BUDGETS, BATCHES = (0.05, 0.1), (1, 8)
VIRTUAL, MANY, WEIGHING = 64, 1024, 128
DISSECTED = ("code", 0.0625)
_LEAST_WIDTH = 512


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


@dataclass
class Pair:
    """A drafter with a small vocabulary, and what calibration makes of it.

    Attributes:
        head: `[V_t, d]`, the drafter's rows.
        mean_probs: by temperature, the target's.
        calibration, held_out: of the drafter.
        near: by temperature, acceptance at some of the calibration positions, `few`.
        factors: of the pruned rows, at rank 512 at most.
        screens: by batch and budget, the best.
    """

    head: Tensor
    vocabulary: Vocabulary
    mean_probs: Mapping[float, Tensor]
    counts: SuccessorCounts
    calibration: Recorded
    held_out: Recorded

    def __post_init__(self) -> None:
        successors = SuccessorTable.from_counts(self.counts, self.vocabulary, width=128)
        self.source = recent_and_successors(self.vocabulary, successors, width=128)
        self.few = self.calibration.every(4)
        self.near = {t: self.measured(self.few, t) for t in TEMPERATURES}
        weight, rank = (self.head.bfloat16(), None), min(512, self.head.shape[1])
        self.metric, mass = metric(self.calibration), self.mean_probs[1.0]
        self.factors = low_rank_factors(weight, self.vocabulary, self.metric, rank, mean_probs=mass)
        self.screens = best_screens(self)
        self._virtual: dict[tuple[int, float], VirtualTokens] = {}

    def measured(self, at: Recorded, temperature: float) -> Measured | Greedy:
        """Acceptance there."""
        return measured(self.head, at, self.vocabulary, temperature)

    def named(self, at: Recorded) -> Tensor:
        """Recent and successor tokens."""
        return self.source(at.contexts.flatten(0, 1))

    def all_tokens(self, at: Recorded, offered: Tensor) -> Tensor:
        """These, and what a screen offers."""
        both = torch.cat([self.named(at), offered], dim=1)
        return distinct_tokens(both, is_pruned(self.vocabulary), both.shape[1])

    def virtual_tokens(self, count: int, temperature: float) -> VirtualTokens:
        """In clusters of their own for each temperature, which take long to find."""
        if (count, temperature) not in self._virtual:
            own = self.factors, self.mean_probs[temperature]
            made = VirtualTokens(self.head, self.vocabulary, *own, count, temperature)
            self._virtual[count, temperature] = made
        return self._virtual[count, temperature]


def measure(kind: str, models: Models) -> Iterator[Row]:
    """Rows of one kind of text."""
    head = models.target.get_output_embeddings().weight.detach()
    ids = (models.tokenizer(text)["input_ids"] for text in documents(kind))
    long = (tokens for tokens in ids if len(tokens) >= WINDOW + 200)
    windows = list(islice(long, CALIBRATED + HELD_OUT))
    begun = torch.tensor([[w[0], *w[100 : 100 + WINDOW - 1]] for w in windows])
    states, recorded = record(models.target, begun)
    calibration, held_out = (
        Recorded(*(x[own] for x in (recorded.target, recorded.drafter, recorded.contexts)))
        for own in (slice(CALIBRATED), slice(CALIBRATED, None))
    )
    counts = successor_counts(len(head), islice(ids, COUNTED))
    mean_probs = mean_probs_at(states[:CALIBRATED, 64::2], head)
    for keep in KEEPS:
        vocabulary = Vocabulary.most_likely(mean_probs[1.0], round(keep * len(head)))
        pair = Pair(head, vocabulary, mean_probs, counts, calibration, held_out)
        for row in measure_pruning(pair, dissected=(kind, keep) == DISSECTED):
            yield {"text": kind, "keep": keep, **row}


def measure_pruning(pair: Pair, *, dissected: bool = False) -> Iterator[Row]:
    """Rows of one set of kept tokens: at each budget the screen that calibration chooses.

    Args:
        dissected: whether to measure what could be better about virtual tokens, too.
    """
    for temperature in TEMPERATURES:
        near, far = pair.near[temperature], pair.measured(pair.held_out, temperature)
        bootstrap = Bootstrap(list(range(len(far.full))), seed=0)
        base: Row = {
            "temperature": temperature,
            "positions": far.full.numel(),
            "full": bootstrap.mean(far.full),
            "pruned": bootstrap.mean(far.pruned),
        }
        rates = rates_of(pair, temperature, near, far)
        if dissected and isinstance(near, Measured) and isinstance(far, Measured):
            rates = itertools.chain(rates, dissected_rates(pair, temperature, near, far))
        for about, rate in rates:
            share = recovered_share(bootstrap, rate, far.pruned, far.full)
            yield {**base, **about, "recovered": share}


def rates_of(
    pair: Pair, temperature: float, near: Measured | Greedy, far: Measured | Greedy
) -> Iterator[tuple[Row, Tensor]]:
    """Acceptance of each method. Greedy drafters have no virtual tokens."""
    yield {"method": "recent and successor tokens"}, far.acceptance(pair.named(pair.held_out))
    virtual = None
    if isinstance(near, Measured) and isinstance(far, Measured):
        virtual = pair.virtual_tokens(VIRTUAL, temperature)
        alone = with_best_offset(virtual, near, nothing(pair.few))
        yield {"method": "virtual tokens"}, far.acceptance(nothing(pair.held_out), alone)
    for batch, budget in itertools.product(BATCHES, BUDGETS):
        screen = pair.screens[batch, budget]
        about: Row = {"batch": batch, "budget": budget}
        about |= {"rank": screen.rank, "width": screen.width}
        if screen.candidates:
            about |= {"candidates": screen.candidates, "second_rank": screen.second_rank}
        offered = offers(screen, pair.held_out)
        yield {"method": "screened tokens", **about}, far.acceptance(offered)
        tokens = pair.all_tokens(pair.held_out, offered)
        if virtual is None or isinstance(near, Greedy) or isinstance(far, Greedy):
            yield {"method": "all", **about}, far.acceptance(tokens)
        else:
            beside = pair.all_tokens(pair.few, offers(screen, pair.few))
            rest = with_best_offset(virtual, near, beside)
            yield {"method": "all", **about}, far.acceptance(tokens, rest)


def dissected_rates(
    pair: Pair, temperature: float, near: Measured, far: Measured
) -> Iterator[tuple[Row, Tensor]]:
    """Virtual tokens, and what could be better about them: alone, and beside a screen."""
    screen = pair.screens[1, BUDGETS[0]]
    beside = offers(screen, pair.few), offers(screen, pair.held_out)
    for count in (VIRTUAL, MANY):
        virtual = pair.virtual_tokens(count, temperature)
        kinds: dict[str, Remainder] = {
            "as they are": virtual,
            "with their members' masses": virtual.exactly,
            f"with weights from logits of rank {WEIGHING}": virtual.by_the_state(
                pair.factors, WEIGHING
            ),
        }
        for kind, remainder in kinds.items():
            for screened in (False, True):
                seen, asked = beside if screened else map(nothing, (pair.few, pair.held_out))
                rest = with_best_offset(remainder, near, seen)
                about: Row = {"method": "dissected", "clusters": count, "kind": kind}
                yield {**about, "screened": screened}, far.acceptance(asked, rest)


def nothing(at: Recorded) -> Tensor:
    """No tokens that are offered."""
    return torch.empty(at.target.shape[:2].numel(), 0, dtype=torch.int32)


def best_screens(pair: Pair) -> dict[tuple[int, float], ScreenedTokens]:
    """By batch and budget the screen that is accepted most, the mean over positive temperatures.

    What is lost at a low temperature is lost at few positions: too few to choose by it alone.
    """
    weight = pair.head.bfloat16(), None
    known = pair.vocabulary, pair.metric, pair.mean_probs[1.0]
    best: dict[tuple[int, float], tuple[float, ScreenedTokens]] = {}
    for batch, budget in itertools.product(BATCHES, BUDGETS):
        screens = screens_within(budget, weight, *known, batch=batch, factors=pair.factors)
        for screen in takewhile(lambda screen: screen.width >= _LEAST_WIDTH, screens):
            tokens = offers(screen, pair.few)
            rates = [pair.near[at].acceptance(tokens).mean() for at in TEMPERATURES if at]
            rate, key = float(sum(rates)), (batch, budget)
            if key not in best or rate > best[key][0]:
                best[key] = rate, screen
    return {key: screen for key, (_, screen) in best.items()}


def line(row: Row) -> str:
    """A row on a terminal."""
    words = [f"{row['text']}, {row['keep']:.1%} kept, T = {row['temperature']}: {row['method']}"]
    if "budget" in row:
        words.append(f"({row['budget']:.0%} of the bytes at batch {row['batch']}:")
        words.append(f"rank {row['rank']}, {row['width']} tokens)")
    if "clusters" in row:
        words.append(f"({row['clusters']} clusters {row['kind']},")
        words.append(f"{'beside a screen' if row['screened'] else 'alone'})")
    return " ".join([*words, span(row["recovered"])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.gemma_screens", description=__doc__)
    add_options(command)
    return run_command(command, lambda given: measure_kinds(given, measure, line), arguments)


if __name__ == "__main__":
    sys.exit(main())
