"""Ways to sample a decoding step from a reduced-vocabulary drafter, with one interface.

All but our operators keep q over the whole target vocabulary between drafting and verifying. Peers
that need other packages are in installed.py; `known_peers` there has all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, Draft, StepRows

from ..bench import eager
from ..bench.timing import capture

OURS, CAPTURED = "ours", "ours, captured"
SPECULATIVE, TARGET_ONLY = "min(p, q)", "p q"


class Step(NamedTuple):
    """What the sampling of one decoding step starts from.

    Attributes:
        draft_logits: `[K, B, V_d]`, a drafter's pass after the other.
        target_logits: `[B, K + 1, V_t]`.
        temperature: `[B]` float32, of both.
        seeds, positions: `[B]` int64, for our operators.
    """

    draft_logits: Tensor
    target_logits: Tensor
    temperature: Tensor
    seeds: Tensor
    positions: Tensor


Kept = tuple[Any, ...]
"""What is kept between drafting and verifying: tensors, and what has no memory of its own."""

Decided = tuple[Tensor, Tensor]
"""Tokens `[B, K + 1]`, -1 after the last, and the number of accepted drafts `[B]`."""


@dataclass(frozen=True)
class Sampler:
    """A peer, prepared for an affinity."""

    draft: Callable[[Step], Kept]
    verify: Callable[[Step, Kept], Decided]

    def __call__(self, step: Step) -> Decided:
        """The whole step."""
        return self.verify(step, self.draft(step))


@dataclass(frozen=True)
class Peer:
    """A way to sample a step.

    Attributes:
        make: prepares it for an affinity, which is not timed.
        missing: why it cannot run on a device for a kind of affinity, or None.
        module: the package whose version belongs to its rows.
        acceptance: the probability of a token that is drawn and accepted.
    """

    name: str
    make: Callable[[Affinity], Sampler]
    missing: Callable[[torch.device, str], str | None] = lambda device, sampler: None
    module: str = "torch"
    acceptance: str = SPECULATIVE


def ours(affinity: Affinity) -> Sampler:
    """As a decoder calls us: K drafts into kept rows, then `verify` of all of them.

    Every step has another position, and so a fresh key (DESIGN section 5).
    """
    turns = itertools.count()
    kept: dict[tuple[Any, ...], StepRows] = {}

    def draft(step: Step) -> Kept:
        length, batch, _ = step.draft_logits.shape
        form = batch, length, step.draft_logits.dtype
        if form not in kept:
            kept[form] = StepRows(affinity, batch, length, dtype=form[2])
        positions, drafts = step.positions + next(turns), list[Draft]()
        for logits in step.draft_logits:
            first = {"seeds": step.seeds, "positions": positions, "rows": kept[form]}
            given = {"after": drafts[-1]} if drafts else first | {"temperature": step.temperature}
            drafts.append(rdk_cuda.draft(logits, affinity, **given))
        return drafts, *kept[form].memory

    def verify(step: Step, kept: Kept) -> Decided:
        logits, temperature = step.target_logits, step.temperature
        decided, accepted, _ = rdk_cuda.verify(logits, kept[0], affinity, temperature)
        return decided, accepted

    return Sampler(draft, verify)


@dataclass(frozen=True)
class Captured(Sampler):
    """A sampler whose whole step is a CUDA graph for each inputs; drafts and verdict alone are not.

    Positions go on by one in the graph, so that each replay has a fresh key.
    """

    graphs: dict[int, tuple[Step, Callable[[], object], Decided]] = field(default_factory=dict)

    def __call__(self, step: Step) -> Decided:
        """The whole step, as tensors of its own: the next replay fills the graph's again."""
        if id(step) not in self.graphs:
            counted = step._replace(positions=step.positions.clone())
            self.graphs[id(step)] = step, *capture(partial(self._next, counted))
        _, replay, (tokens, accepted) = self.graphs[id(step)]
        replay()
        return tokens.clone(), accepted.clone()

    def _next(self, step: Step) -> Decided:
        step.positions.add_(1)
        return super().__call__(step)


def captured(affinity: Affinity) -> Sampler:
    """`ours`, captured."""
    sampler = ours(affinity)
    return Captured(sampler.draft, sampler.verify)


def needs_graphs(device: torch.device, sampler: str) -> str | None:
    """Why a step cannot be captured."""
    return None if device.type == "cuda" else "CUDA graphs need a GPU"


Link = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits `[B, V_d]` and temperatures `[B]` to drafted tokens `[B]` and q `[B, V_t]`."""

Judge = Callable[[Tensor, Tensor, Tensor, Tensor], Decided]
"""From target logits `[B, K + 1, V_t]`, q `[B, K, V_t]`, tokens `[B, K]`, temperatures `[B]`."""


def full_width(link: Link, judge: Judge = eager.verify) -> Sampler:
    """A sampler that keeps q over the whole vocabulary."""

    def draft(step: Step) -> Kept:
        links = [link(logits, step.temperature) for logits in step.draft_logits]
        return torch.stack([token for token, _ in links], 1), torch.stack([q for _, q in links], 1)

    def verify(step: Step, kept: Kept) -> Decided:
        tokens, q = kept
        return judge(step.target_logits, q, tokens, step.temperature)

    return Sampler(draft, verify)


def scattered(affinity: Affinity, *, sparse: bool = False) -> Link:
    """Probabilities scattered entry by entry, or a product with a sparse matrix."""
    entries = eager.Entries.of(affinity)
    matrix = entries.matrix() if sparse else None
    return lambda logits, temperature: eager.draft(logits, temperature, entries, matrix)


def gathered_probs(affinity: Affinity) -> Callable[[Tensor], Tensor]:
    """From `[B, V_d]` to `[B, V_t]`, where every target token has at most one entry of S."""
    counts = affinity.col_offsets.diff()
    column = torch.zeros(affinity.target_size, dtype=torch.int64, device=affinity.device)
    weight = torch.zeros(affinity.target_size, device=affinity.device)
    column[counts > 0] = affinity.col_drafts.long()
    weight[counts > 0] = affinity.col_weights
    return lambda probs: probs.index_select(1, column) * weight


def gathered(affinity: Affinity) -> Link:
    """The fewest operations that PyTorch can do it in, found by looking at the affinity."""
    spread, bias = gathered_probs(affinity), affinity.bias

    def link(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        q = spread(torch.softmax(logits.float() / temperature[:, None] + bias, 1))
        return torch.multinomial(q, 1).squeeze(1), q

    return link


def scattered_logits(affinity: Affinity) -> Link:
    """Logits of the kept tokens among -inf, softmax over all: what engines do.

    So does vLLM with EAGLE-3 drafters (vllm/model_executor/models/llama_eagle3.py at 583507d).
    """
    targets, size = affinity.row_targets.long(), affinity.target_size

    def link(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        wide = logits.new_full((logits.shape[0], size), -torch.inf, dtype=torch.float32)
        wide[:, targets] = logits.float()
        q = torch.softmax(wide / temperature[:, None], 1)
        return torch.multinomial(q, 1).squeeze(1), q

    return link


def compiled(link: Link) -> Sampler:
    """Drafting and verifying each compiled; the drafter's pass is between them."""
    return full_width(
        torch.compile(link, dynamic=False), torch.compile(eager.verify, dynamic=False)
    )


def only_pruned(device: torch.device, sampler: str) -> str | None:
    """Why a peer cannot run that needs a single target for each drafter token."""
    return None if sampler == "pruned" else "a virtual token has no single place among the logits"


TORCH_PEERS = (
    Peer(OURS, ours, module="rdk_cuda"),
    Peer(CAPTURED, captured, needs_graphs, module="rdk_cuda"),
    Peer("eager", lambda affinity: full_width(scattered(affinity))),
    Peer("eager-gather", lambda affinity: full_width(gathered(affinity))),
    Peer("scatter-logits", lambda affinity: full_width(scattered_logits(affinity)), only_pruned),
    Peer("sparse", lambda affinity: full_width(scattered(affinity, sparse=True))),
    Peer("compiled", lambda affinity: compiled(scattered(affinity))),
    Peer("compiled-gather", lambda affinity: compiled(gathered(affinity))),
)
