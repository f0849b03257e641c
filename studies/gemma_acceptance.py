"""How much acceptance comes back for a real model, Gemma 3 270M (V_t 262,144).

`python -m studies.gemma_acceptance` drafts with the model itself, which then sees the last 40 to
47 tokens alone. With `--full DIR` it drafts with the EAGLE-3 drafter with all tokens that
`python -m examples.eagle3.gemma` trains, at the first three places of a draft by turns, and also
prunes it to the tokenizer's first tokens, a general vocabulary, as published drafters have. The
text is the source code, and the docstrings, of Python's standard library. Kept tokens, the
screen's metric and its sizes come from some documents, all figures from others. Acceptance is
exact, `sum_x min(p, q)`, and nothing is trained. Needs the extra `[gemma]`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo import gemma
from examples.demo.corpus import held_out_files, standard_library, training_files
from profiling.commands import Parser, run_command, write_found
from profiling.tables import table
from rdk_cuda import ScreenedTokens, SuccessorCounts, SuccessorTable, Vocabulary
from rdk_cuda.calibration import (
    cluster_pruned_tokens,
    low_rank_factors,
    screens_within,
    virtual_drafter,
)
from rdk_cuda.cli.arguments import natural, share
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.dynamic_tokens import distinct_tokens, recent_and_successors
from rdk_cuda.dynamic_tokens.sources import is_pruned
from rdk_cuda.evaluation import Bootstrap, recovered_share
from rdk_cuda.integrations.eagle3 import read_checkpoint
from rdk_cuda.recipes.inputs.pairs import Pair as Models

from .gemma_recording import (
    BLOCK,
    WINDOW,
    Recorded,
    mean_probs_at,
    metric,
    record_drafter,
    record_itself,
    tokens_of,
    windows_of,
)

KINDS, KEEPS, TEMPERATURES = ("code", "prose"), (0.125, 0.0625, 0.03), (1.0, 0.7)
BUDGETS, BATCHES, VIRTUAL = (0.05, 0.1), (1, 8), 64
CALIBRATED, HELD_OUT, COUNTED = 20, 14, 250
_LEAST_WIDTH = 512

Row = dict[str, Any]


@dataclass
class Block:
    """What is known of some positions, at a temperature.

    Attributes:
        hidden: `[n, d]`, the drafter's states.
        largest: `[n, 1]`, the largest `z / T` of its full head.
        p, p_pruned: the target's probabilities of kept and of pruned tokens.
        e, e_pruned: the drafter's `exp(z / T - largest)`.
    """

    hidden: Tensor
    largest: Tensor
    p: Tensor
    e: Tensor
    p_pruned: Tensor
    e_pruned: Tensor


Remainder = Callable[[Block], Tensor]
"""What a drafter gives to the pruned tokens of a block that it does not offer, as `e_pruned`."""


class Measured:
    """Acceptance at recorded positions: of the full drafter, the pruned one, and with columns."""

    def __init__(
        self, head: Tensor, at: Recorded, vocabulary: Vocabulary, temperature: float
    ) -> None:
        kept, pruned = vocabulary.kept, vocabulary.pruned
        self.place = torch.full((vocabulary.target_size + 1,), -1)
        self.place[pruned] = torch.arange(len(pruned))
        self.shape, self.blocks = at.target.shape[:2], []
        full, plain = [], []
        states = (each.flatten(0, 1).split(BLOCK) for each in (at.target, at.drafter))
        for target, drafter in zip(*states, strict=True):
            p = ((target @ head.T) / temperature).softmax(1)
            z = (drafter @ head.T) / temperature
            largest = z.amax(1, keepdim=True)
            e = (z - largest).exp_()
            full.append(torch.minimum(p, e / e.sum(1, keepdim=True)).sum(1))
            own = p[:, kept], e[:, kept]
            plain.append(torch.minimum(own[0], own[1] / own[1].sum(1, keepdim=True)).sum(1))
            self.blocks.append(Block(drafter, largest, *own, p[:, pruned], e[:, pruned]))
        self.full, self.pruned = (torch.cat(x).view(self.shape) for x in (full, plain))

    def acceptance(self, tokens: Tensor, remainder: Remainder | None = None) -> Tensor:
        """`[documents, positions]` with `[n, C]` offered tokens, -1 for none."""
        columns = self.place[tokens.long().where(tokens >= 0, len(self.place) - 1)]
        rates = []
        for block, at in zip(self.blocks, columns.split(BLOCK), strict=True):
            offered = block.e_pruned.gather(1, at.clamp_min(0)).masked_fill(at < 0, 0)
            total = (block.e.sum(1) + offered.sum(1))[:, None]
            if remainder is None:
                wanted = block.p_pruned.gather(1, at.clamp_min(0))
                more = torch.minimum(wanted, offered / total).sum(1)
            else:
                named = torch.zeros_like(block.e_pruned)
                named.scatter_add_(1, at.clamp_min(0), offered)
                rest = remainder(block)
                total = total + rest.sum(1, keepdim=True)
                more = torch.minimum(block.p_pruned, rest.add_(named).div_(total)).sum(1)
            rates.append(torch.minimum(block.p, block.e / total).sum(1) + more)
        return torch.cat(rates).view(self.shape)


def virtual_tokens(
    head: Tensor,
    vocabulary: Vocabulary,
    directions: Tensor,
    mean_probs: Tensor,
    temperature: float,
) -> tuple[PrunedDrafter, Remainder]:
    """A drafter with virtual tokens, and these as a remainder: clusters' masses times weights.

    Args:
        directions: `[P, r]`, of the pruned rows, that clusters are made in.
        mean_probs: `[V_t]`, the target's at that temperature.
    """
    pruned = vocabulary.pruned
    rows = torch.zeros(len(head), directions.shape[1]).index_copy(0, pruned, directions)
    clusters = cluster_pruned_tokens(rows, vocabulary, mean_probs, VIRTUAL)
    drafter = virtual_drafter((head, None), vocabulary, clusters, mean_probs)
    cluster, mass = clusters[pruned], mean_probs[pruned]
    whole = torch.zeros(int(cluster.max()) + 1, dtype=mass.dtype).index_add_(0, cluster, mass)
    weight = (mass / whole[cluster]).float().nan_to_num()

    hot = vocabulary.draft_size
    virtual_rows, bias = drafter.weight[hot:], drafter.affinity.bias[hot:]

    def remainder(block: Block) -> Tensor:
        logits = torch.nn.functional.linear(block.hidden, virtual_rows).float()
        log_masses = logits / temperature + bias - block.largest
        return log_masses.exp()[:, cluster].mul_(weight)

    return drafter, remainder


def with_best_offset(remainder: Remainder, near: Measured, tokens: Tensor) -> Remainder | None:
    """With the one offset for all that is accepted most beside some tokens; None for off."""
    rates: dict[float, float] = {-math.inf: float(near.acceptance(tokens).mean())}

    def shifted(offset: float) -> Remainder:
        return lambda block: remainder(block).mul_(math.exp(offset))

    best = 0.0
    for step in (1.0, 0.5):
        for offset in {best, best - step, best + step, best - 2 * step} - set(rates):
            rates[offset] = float(near.acceptance(tokens, shifted(offset)).mean())
        best = max(set(rates) - {-math.inf}, key=lambda offset: rates[offset])
    return shifted(best) if rates[best] > rates[-math.inf] else None


def offers(screen: ScreenedTokens, at: Recorded) -> Tensor:
    """`[n, C]` tokens that a screen offers."""
    hidden = at.drafter.flatten(0, 1).split(BLOCK)
    return torch.cat([screen([], hidden=states) for states in hidden])


def successor_counts(size: int, texts: Iterable[list[int]]) -> SuccessorCounts:
    """What follows what in some texts."""
    counts = SuccessorCounts(size)
    for tokens in texts:
        counts.add(tokens)
    return counts


@dataclass
class Pair:
    """A drafter with a small vocabulary, and what calibration makes of it.

    Attributes:
        head: `[V_t, d]`, the drafter's rows.
        mean_probs: by temperature, the target's.
        near, far: of the drafter, to calibrate and to measure on.
    """

    head: Tensor
    vocabulary: Vocabulary
    mean_probs: Mapping[float, Tensor]
    counts: SuccessorCounts
    near: Recorded
    far: Recorded

    def __post_init__(self) -> None:
        successors = SuccessorTable.from_counts(self.counts, self.vocabulary, width=128)
        self.source = recent_and_successors(self.vocabulary, successors, width=128)
        self.few = self.near.some(slice(None), 4)
        self.at_few = {t: self.measured(self.few, t) for t in TEMPERATURES}
        weight, rank = (self.head.bfloat16(), None), min(512, self.head.shape[1])
        known = self.vocabulary, metric(self.near)
        mass = self.mean_probs[1.0]
        self.factors = low_rank_factors(weight, *known, rank, mean_probs=mass)
        self.screens = {}
        for batch, budget in itertools.product(BATCHES, BUDGETS):
            found = screens_within(budget, weight, *known, mass, batch=batch, factors=self.factors)
            wide = takewhile(lambda screen: screen.width >= _LEAST_WIDTH, found)
            self.screens[batch, budget] = max(wide, key=self._mean_acceptance)

    def _mean_acceptance(self, screen: ScreenedTokens) -> float:
        tokens = offers(screen, self.few)
        return sum(float(self.at_few[at].acceptance(tokens).mean()) for at in TEMPERATURES)

    def measured(self, at: Recorded, temperature: float) -> Measured:
        """Acceptance there."""
        return Measured(self.head, at, self.vocabulary, temperature)

    def all_tokens(self, at: Recorded, offered: Tensor | None = None) -> Tensor:
        """Recent and successor tokens, and what a screen offers."""
        named = self.source(at.contexts.flatten(0, 1))
        if offered is None:
            return named
        both = torch.cat([named, offered], dim=1)
        return distinct_tokens(both, is_pruned(self.vocabulary), both.shape[1])


def rates_of(pair: Pair, temperature: float, far: Measured) -> Iterator[tuple[Row, Tensor]]:
    """Acceptance of each method."""
    yield {"method": "recent and successor tokens"}, far.acceptance(pair.all_tokens(pair.far))
    near, directions = pair.at_few[temperature], pair.factors[0][:, :32]
    known = pair.head, pair.vocabulary, directions, pair.mean_probs[temperature]
    _, virtual = virtual_tokens(*known, temperature)
    nothing = [torch.empty(at.target[..., 0].numel(), 0).int() for at in (pair.few, pair.far)]
    alone = with_best_offset(virtual, near, nothing[0])
    yield {"method": "virtual tokens"}, far.acceptance(nothing[1], alone)
    for (batch, budget), screen in pair.screens.items():
        about: Row = {"batch": batch, "budget": budget}
        about |= {"rank": screen.rank, "width": screen.width}
        offered = offers(screen, pair.far)
        yield {"method": "screened tokens", **about}, far.acceptance(offered)
        beside = pair.all_tokens(pair.few, offers(screen, pair.few))
        rest = with_best_offset(virtual, near, beside)
        yield {"method": "all", **about}, far.acceptance(pair.all_tokens(pair.far, offered), rest)


def loss_rows(head: Tensor, vocabulary: Vocabulary, far: Recorded) -> Iterator[Row]:
    """At each temperature acceptance of a drafter with all tokens, a pruned one, and the loss."""
    for temperature in TEMPERATURES:
        found = Measured(head, far, vocabulary, temperature)
        bootstrap = Bootstrap(list(range(len(found.full))), seed=0)
        yield {
            **base_row(found, bootstrap, temperature),
            "method": "pruned drafter",
            "lost": bootstrap.mean(found.full - found.pruned),
        }


def recovered_rows(pair: Pair) -> Iterator[Row]:
    """At each temperature what comes back, by method, and with the best screen of each budget."""
    for temperature in TEMPERATURES:
        far = pair.measured(pair.far, temperature)
        bootstrap = Bootstrap(list(range(len(far.full))), seed=0)
        base = base_row(far, bootstrap, temperature)
        for about, rate in rates_of(pair, temperature, far):
            share = recovered_share(bootstrap, rate, far.pruned, far.full)
            yield {**base, **about, "recovered": share}


def base_row(found: Measured, bootstrap: Bootstrap, temperature: float) -> Row:
    """The columns of all rows at a temperature."""
    own = {name: bootstrap.mean(getattr(found, name)) for name in ("full", "pruned")}
    return {"temperature": temperature, "positions": found.full.numel(), **own}


def rows_of_itself(kind: str, models: Models, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of one kind of text for the model with a short context."""
    head, root = models.target.get_output_embeddings().weight.detach(), standard_library()
    files = [*training_files(), *held_out_files()]  # in an order that looks random and stays
    files.sort(key=lambda f: hashlib.sha256(f.relative_to(root).as_posix().encode()).digest())
    ids = tokens_of(files, kind, models.tokenizer)
    long = (tokens for tokens in ids if len(tokens) >= WINDOW + 200)
    windows = [[w[0], *w[100 : 100 + WINDOW - 1]] for w in islice(long, CALIBRATED + HELD_OUT)]
    states, recorded = record_itself(models.target, torch.tensor(windows))
    near, far = recorded.some(slice(CALIBRATED)), recorded.some(slice(CALIBRATED, None))
    counts = successor_counts(len(head), islice(ids, COUNTED))
    mean_probs = mean_probs_at(states[:CALIBRATED, 64::2], head, TEMPERATURES)
    for keep in options.keep:
        vocabulary = Vocabulary.most_likely(mean_probs[1.0], round(keep * len(head)))
        pair = Pair(head, vocabulary, mean_probs, counts, near, far)
        yield from ({"text": kind, "keep": keep, **row} for row in recovered_rows(pair))


def rows_of_drafter(kind: str, models: Models, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of one kind of text: what pruning loses and, where it loses some, what comes back."""
    model, tokenizer = models.target, models.tokenizer
    network = read_checkpoint(options.full, model).network
    head = model.get_output_embeddings().weight.detach()
    files, held_out = training_files(), held_out_files()
    some = files[:: len(files) // (3 * CALIBRATED)]
    near = record_drafter(model, network, windows_of(some, kind, tokenizer, CALIBRATED))
    far = record_drafter(model, network, windows_of(held_out, kind, tokenizer, len(held_out)))
    counts = successor_counts(len(head), tokens_of(files[::3], kind, tokenizer))
    mean_probs = mean_probs_at(near.target, head, TEMPERATURES)
    for size in (round(keep * len(head)) for keep in options.keep):
        vocabularies = {
            "like text": Vocabulary.most_likely(mean_probs[1.0], size),
            "a general vocabulary": Vocabulary(torch.arange(size), len(head)),
        }
        for chosen, vocabulary in vocabularies.items():
            about: Row = {"text": kind, "chosen": chosen, "keep": round(size / len(head), 6)}
            lost = list(loss_rows(head, vocabulary, far))
            yield from ({**about, **row} for row in lost)
            if any(row["lost"][1] > 0 for row in lost):
                pair = Pair(head, vocabulary, mean_probs, counts, near, far)
                yield from ({**about, **row} for row in recovered_rows(pair))


def cells(row: Row) -> list[str]:
    """A row as text: where, how, acceptance of the full and the pruned drafter, and the figure."""
    more = {name: value for name, value in row.items() if name not in _SHOWN}
    how = ", ".join(f"{name} {value}" for name, value in more.items())
    name = "lost" if "lost" in row else "recovered"
    found = "" if row[name] is None else percent(row[name]) + ", lost" * (name == "lost")
    return [
        ", ".join([row["text"], f"{100 * row['keep']:.3g} %", *filter(None, [row.get("chosen")])]),
        f"{row['temperature']:g}",
        f"{row['method']}{': ' * bool(how)}{how}",
        *(percent(row[whose][:1]) for whose in ("full", "pruned")),
        found,
    ]


def percent(interval: Sequence[float | None]) -> str:
    """With its ends where there are any."""
    value, *ends = (f"{100 * end:.1f}" for end in interval if end is not None)
    return value + (f" [{', '.join(ends)}]" if ends else "")


TITLES = ("kept", "T", "method", "full, %", "pruned, %", "% of the loss recovered, or points lost")
_SHOWN = {"text", "keep", "chosen", "temperature", "method", "positions", "full", "pruned"}
_SHOWN |= {"lost", "recovered"}


def page(rows: Sequence[Row]) -> str:
    """All rows as a table."""
    lines = table(TITLES, map(cells, rows), "lrlr")
    return f"Acceptance with Gemma 3 270M, with 95 % intervals.\n\n{lines}"


def run(options: argparse.Namespace) -> None:
    """Measure each kind of text; print each row and, if asked to, write all so far."""
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    if options.threads:
        torch.set_num_threads(options.threads)
    models, rows = gemma.load_gemma(), []
    rows_of = rows_of_itself if options.full is None else rows_of_drafter
    for row in (row for kind in options.text for row in rows_of(kind, models, options)):
        rows.append(row)
        print(" | ".join(cells(row)), flush=True)
        write_found(options.output, page(rows), model=gemma.NAME, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.gemma_acceptance", description=__doc__)
    add = command.add_argument
    add("--full", type=Path, metavar="DIR", help="an EAGLE-3 drafter with all tokens")
    add("--keep", type=share, nargs="+", default=KEEPS, metavar="SHARE", help="kept tokens")
    add("--text", nargs="+", choices=KINDS, default=KINDS, help="(both)")
    add("--threads", type=natural, metavar="N", help="torch's own number")
    add("--output", type=Path, metavar="FILE", help="JSON file; next to it the rows as a table")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
