"""Acceptance of samples as a function of one offset of all virtual tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter
from ..recording import Samples

_BLOCK_ENTRIES = 1 << 22  # draft logits, or target probabilities, that are held at a time
# The 512 likeliest recorded targets are used, and one in 16 of the others.
_LIKELIEST, _ONE_OF = 512, 16
_LOUDEST = 60.0  # log of the virtual tokens' mass; next to more, float32 loses everything else


class VirtualMasses(NamedTuple):
    """What samples accept for any offset o of the virtual tokens' biases.

    Scale a sample so that its kept and dynamic columns have mass 1 together. Of their mass a target
    token gets f(x), and v(x) of that of the virtual ones, V in all:

        q(x) = (f(x) + e^o v(x)) / (1 + e^o V)

    All tokens that were not recorded count as one, which gives them a little too much: a `min` of
    sums instead of a sum of `min`.

    Attributes:
        probs, fixed, shares, times: `[n, e]` float32, p, f and v / V of some of the recorded
            targets, and how many of them each stands for.
        log_total: `[n]` float32, log V before any offset; -inf if all are masked.
        unrecorded: `[n]` float32, p of all tokens that were not recorded.
    """

    probs: Tensor
    fixed: Tensor
    shares: Tensor
    times: Tensor
    log_total: Tensor
    unrecorded: Tensor

    def acceptance(self, offset: float) -> Tensor:
        """`sum_x min(p, q)` of each sample, `[n]` float64."""
        total = (self.log_total + offset).clamp(max=_LOUDEST).exp()[:, None]
        q = (self.fixed + self.shares * total) / (1 + total)
        rates = (torch.minimum(self.probs, q) * self.times).sum(1, dtype=torch.float64)
        beyond = 1 - (q * self.times).sum(1, dtype=torch.float64)
        return rates + torch.minimum(self.unrecorded.double(), beyond.clamp(min=0))

    def mean_acceptance(self, offset: float) -> float:
        return float(self.acceptance(offset).mean())


@torch.no_grad()
def virtual_masses(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> VirtualMasses:
    """The acceptance of samples as a function of an offset of the drafter's virtual tokens.

    The virtual tokens follow the kept ones; no target token has two columns.
    """
    widest = max(drafter.affinity.draft_size, samples.targets.shape[1])
    blocks = torch.split(torch.arange(len(samples), device="cpu"), max(1, _BLOCK_ENTRIES // widest))
    parts = (_of_block(samples.select(rows), drafter, full_head, temperature) for rows in blocks)
    return VirtualMasses(*map(torch.cat, zip(*parts, strict=True)))


def _of_block(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> VirtualMasses:
    affinity, hot = drafter.affinity, drafter.vocabulary.draft_size
    columns = drafter.columns(full_head, samples.hidden, samples.contexts)
    logits = columns["draft_logits"].float() / temperature + affinity.bias
    dynamic = columns.get("dynamic_logits", logits[:, :0]).float() / temperature
    rest = torch.cat([logits[:, :hot], dynamic], 1).logsumexp(1, keepdim=True)
    targets, probs, times = _thinned(samples, temperature)
    unrecorded = (1 - samples.target_probs(temperature).sum(1)).clamp(min=0)
    drafts, weights = _column_of(affinity, targets)
    total = logits[:, hot:].logsumexp(1, keepdim=True)
    fixed = weights * (logits.gather(1, drafts) - rest).exp()
    shares = weights * (logits.gather(1, drafts) - total).exp()
    fixed, shares = fixed.where(drafts < hot, 0.0), shares.where(drafts >= hot, 0.0)
    if "dynamic_tokens" in columns:
        _add_dynamic(fixed, targets, columns["dynamic_tokens"], (dynamic - rest).exp())
    log_total = (total - rest)[:, 0]
    return VirtualMasses(probs, fixed, shares.nan_to_num(0.0), times, log_total, unrecorded)


def _thinned(samples: Samples, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Targets `[n, e]`, their p, and how many each stands for; only some are of the tail.

    The tail matters to virtual tokens, but not every token in it: neighbouring ranks are about
    equally likely. Which tokens are taken depends on the sample's row.
    """
    targets, probs = samples.targets.long(), samples.target_probs(temperature)
    tail = targets.shape[1] - _LIKELIEST
    count = tail // _ONE_OF
    if count < 1:
        return targets, probs, torch.ones_like(probs)
    rows = torch.arange(len(samples), device="cpu")[:, None]
    taken = _LIKELIEST + _ONE_OF * torch.arange(count, device="cpu") + rows % _ONE_OF
    index = torch.cat([torch.arange(_LIKELIEST, device="cpu").expand(len(samples), -1), taken], 1)
    times = torch.ones(index.shape, dtype=torch.float32, device="cpu")
    times[:, _LIKELIEST:] = tail / count
    return targets.gather(1, index), probs.gather(1, index), times


def _column_of(affinity: Affinity, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The drafter token that leads to each target, and its weight; 0 and 0.0 if none does."""
    if not affinity.nnz:
        return torch.zeros_like(targets), torch.zeros_like(targets, dtype=torch.float32)
    begin, end = affinity.col_offsets[targets].long(), affinity.col_offsets[targets + 1].long()
    entry = begin.clamp(max=affinity.nnz - 1)
    drafts = affinity.col_drafts[entry].long().where(begin < end, 0)
    return drafts, affinity.col_weights[entry].where(begin < end, 0.0)


def _add_dynamic(fixed: Tensor, targets: Tensor, tokens: Tensor, masses: Tensor) -> None:
    """Adds the masses `[n, C]` of dynamic columns where their tokens are among the targets."""
    ordered, order = targets.sort(1)
    tokens = tokens.long().contiguous()
    place = torch.searchsorted(ordered, tokens).clamp(max=targets.shape[1] - 1)
    found = ordered.gather(1, place) == tokens
    fixed.scatter_add_(1, order.gather(1, place), masses.where(found, 0.0))
