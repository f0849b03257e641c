"""Exact acceptance at recorded positions of a real model: what its three studies share."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo import gemma
from rdk_cuda import ScreenedTokens, SuccessorCounts, Vocabulary
from rdk_cuda.calibration import cluster_pruned_tokens, virtual_drafter
from rdk_cuda.calibration.virtual import virtual_logits
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.models import Models
from rdk_cuda.files import write_json

from ..commands import Parser
from ..machine import describe, now

__all__ = [
    "KEEPS",
    "KINDS",
    "TEMPERATURES",
    "Greedy",
    "Measured",
    "Recorded",
    "Remainder",
    "Row",
    "VirtualTokens",
    "add_options",
    "mean_probs_at",
    "measure_kinds",
    "measured",
    "metric",
    "offers",
    "span",
    "successor_counts",
    "with_best_offset",
]

KEEPS, TEMPERATURES = (0.125, 0.0625, 0.03), (1.0, 0.7, 0.0)
KINDS = ("code", "prose")
_BLOCK = 64  # positions whose logits are held at a time
_DIRECTIONS = 32  # of the pruned rows, the first ones, that clusters are made in

Row = dict[str, Any]
Factors = tuple[Tensor, Tensor]


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


Remainder = Callable[[Block, Tensor], Tensor]
"""What a drafter gives to pruned tokens besides those that it offers, in units of `e`: of a block
and of `e_pruned` without the tokens that are offered, `[n, P]`."""


class Measured:
    """Acceptance at recorded positions: of the full drafter, the pruned one, and with columns."""

    def __init__(
        self, head: Tensor, at: Recorded, vocabulary: Vocabulary, temperature: float
    ) -> None:
        kept, pruned = vocabulary.kept, vocabulary.pruned
        self.place = torch.full((vocabulary.target_size + 1,), -1)
        self.place[pruned] = torch.arange(len(pruned))
        self.shape, self.tops = at.target.shape[:2], []
        self.blocks: list[Block] = []
        full, plain = [], []
        states = (each.flatten(0, 1).split(_BLOCK) for each in (at.target, at.drafter))
        for target, drafter in zip(*states, strict=True):
            p = ((target @ head.T) / temperature).softmax(1)
            z = (drafter @ head.T) / temperature
            largest = z.amax(1, keepdim=True)
            e = (z - largest).exp_()
            full.append(torch.minimum(p, e / e.sum(1, keepdim=True)).sum(1))
            own = p[:, kept], e[:, kept]
            plain.append(torch.minimum(own[0], own[1] / own[1].sum(1, keepdim=True)).sum(1))
            self.blocks.append(Block(drafter, largest, *own, p[:, pruned], e[:, pruned]))
            self.tops.append((p.argmax(1), e.argmax(1), kept[own[1].argmax(1)]))
        self.full, self.pruned = (torch.cat(x).view(self.shape) for x in (full, plain))

    def acceptance(self, tokens: Tensor, remainder: Remainder | None = None) -> Tensor:
        """`[documents, positions]` with `[n, C]` offered tokens, -1 for none."""
        rates = []
        columns = self.place[tokens.long().where(tokens >= 0, len(self.place) - 1)]
        for block, at in zip(self.blocks, columns.split(_BLOCK), strict=True):
            offered = block.e_pruned.gather(1, at.clamp_min(0)).masked_fill(at < 0, 0)
            total = (block.e.sum(1) + offered.sum(1))[:, None]
            if remainder is None:
                wanted = block.p_pruned.gather(1, at.clamp_min(0))
                more = torch.minimum(wanted, offered / total).sum(1)
            else:
                named = torch.zeros_like(block.e_pruned)
                named.scatter_add_(1, at.clamp_min(0), offered)
                rest = remainder(block, block.e_pruned - named)
                total = total + rest.sum(1, keepdim=True)
                more = torch.minimum(block.p_pruned, rest.add_(named).div_(total)).sum(1)
            rates.append(torch.minimum(block.p, block.e / total).sum(1) + more)
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
        for block, at, names, own in zip(measured.blocks, *parts, strict=True):
            offered = block.e_pruned.gather(1, at.clamp_min(0)).masked_fill(at < 0, -1)
            best = offered.max(1)
            likeliest = names.gather(1, best.indices[:, None])[:, 0]
            drafted.append(likeliest.where(best.values > block.e.amax(1), own))
        return (torch.cat(drafted) == self.target).double().view(measured.shape)


def measured(
    head: Tensor, at: Recorded, vocabulary: Vocabulary, temperature: float
) -> Measured | Greedy:
    """Acceptance at a temperature, 0 for greedy decoding."""
    if temperature == 0:
        return Greedy(Measured(head, at, vocabulary, 1.0))
    return Measured(head, at, vocabulary, temperature)


class VirtualTokens:
    """Virtual tokens of a head as a remainder, at a temperature.

    Args:
        mean_probs: `[V_t]`, the target's at that temperature.
        factors: of the pruned rows, which clusters are made of.
    """

    def __init__(
        self,
        head: Tensor,
        vocabulary: Vocabulary,
        factors: Factors,
        mean_probs: Tensor,
        count: int,
        temperature: float,
    ) -> None:
        pruned, self.temperature = vocabulary.pruned, temperature
        left = factors[0][:, :_DIRECTIONS]
        rows = torch.zeros(len(head), left.shape[1]).index_copy(0, pruned, left)
        clusters = cluster_pruned_tokens(rows, vocabulary, mean_probs, count)
        self.drafter = virtual_drafter((head, None), vocabulary, clusters, mean_probs)
        self.cluster, mass = clusters[pruned], mean_probs[pruned]
        whole = torch.zeros(int(self.cluster.max()) + 1, dtype=mass.dtype)
        whole.index_add_(0, self.cluster, mass)
        self.weight = (mass / whole[self.cluster]).float().nan_to_num()

    def __call__(self, block: Block, rest: Tensor) -> Tensor:
        """`[n, P]`: each cluster's mass, times the weights of its members."""
        return self._spread(self._logits(block) - block.largest)

    def exactly(self, block: Block, rest: Tensor) -> Tensor:
        """With the mass that the members have, in place of Jensen's bound on it."""
        return self._spread(self._masses(rest).log())

    def by_the_state(self, factors: Factors, rank: int) -> Remainder:
        """With weights within a cluster from the members' logits at low rank."""
        left, right = factors[0][:, :rank], factors[1][:rank]

        def remainder(block: Block, rest: Tensor) -> Tensor:
            logits = ((block.hidden @ right.T) @ left.T).div_(self.temperature).sub_(block.largest)
            shares = logits.exp_()
            own = (self._logits(block) - block.largest).exp()
            return shares.mul_((own / self._masses(shares))[:, self.cluster])

        return remainder

    def _logits(self, block: Block) -> Tensor:
        return virtual_logits(block.hidden, self.drafter, self.temperature)

    def _masses(self, of_members: Tensor) -> Tensor:
        masses = of_members.new_zeros(len(of_members), int(self.cluster.max()) + 1)
        return masses.index_add_(1, self.cluster, of_members)

    def _spread(self, log_masses: Tensor) -> Tensor:
        return log_masses.exp()[:, self.cluster].mul_(self.weight)


def with_best_offset(remainder: Remainder, near: Measured, tokens: Tensor) -> Remainder | None:
    """With the one offset for all that is accepted most beside some tokens; None for off."""
    rates: dict[float, float] = {-math.inf: float(near.acceptance(tokens).mean())}

    def shifted(offset: float) -> Remainder:
        return lambda block, rest: remainder(block, rest).mul_(math.exp(offset))

    best = 0.0
    for step in (1.0, 0.5):
        for offset in {best, best - step, best + step, best - 2 * step} - set(rates):
            rates[offset] = float(near.acceptance(tokens, shifted(offset)).mean())
        best = max(set(rates) - {-math.inf}, key=lambda offset: rates[offset])
    return shifted(best) if rates[best] > rates[-math.inf] else None


def offers(screen: ScreenedTokens, at: Recorded) -> Tensor:
    """`[n, C]` tokens that a screen offers."""
    hidden = at.drafter.flatten(0, 1).split(_BLOCK)
    return torch.cat([screen([], hidden=states) for states in hidden])


def mean_probs_at(states: Tensor, head: Tensor) -> dict[float, Tensor]:
    """`[V_t]` float64 by temperature: the target's mean distribution at states `[..., d]`."""
    parts = states.flatten(0, -2).split(_BLOCK)
    return {
        at: sum(((part @ head.T) / at).softmax(1).sum(0).double() for part in parts)
        / sum(map(len, parts))
        for at in TEMPERATURES
        if at
    }


def metric(at: Recorded) -> Tensor:
    """`E[x x^T]` of a drafter's states."""
    states = at.drafter.flatten(0, 1).double()
    return states.T @ states / len(states)


def successor_counts(size: int, texts: Iterable[list[int]]) -> SuccessorCounts:
    """What follows what in some texts."""
    counts = SuccessorCounts(size)
    for tokens in texts:
        counts.add(tokens)
    return counts


def add_options(command: Parser) -> None:
    """What `measure_kinds` reads."""
    command.add_argument("--text", nargs="+", choices=KINDS, default=KINDS, help="(both)")
    command.add_argument("--threads", type=natural, metavar="N", help="torch's own number")
    command.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write")


def measure_kinds(
    options: argparse.Namespace,
    rows_of: Callable[[str, Models], Iterator[Row]],
    line: Callable[[Row], str],
) -> None:
    """Measure each kind of text; print each row and, if asked to, write all so far.

    Args:
        rows_of: of a kind of text and the models.
        line: a row on a terminal.
    """
    gemma.refuse_missing()
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    print(gemma.terms(), file=sys.stderr)
    if options.threads:
        torch.set_num_threads(options.threads)
    models, rows = gemma.load_gemma(), []
    about = {"run": now(), "model": gemma.NAME, **describe(torch.device("cpu"))}
    for kind in options.text:
        for row in rows_of(kind, models):
            rows.append(row)
            print(line(row), flush=True)
            if options.output is not None:
                write_json({**about, "rows": rows}, options.output)


def span(interval: Sequence[float] | None) -> str:
    """In percent, for a terminal."""
    value, low, high = (100 * end for end in interval or [float("nan")] * 3)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
