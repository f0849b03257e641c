"""Acceptance of samples as a function of the virtual tokens' masses, fast enough to search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter
from ..recording import Samples

_BLOCK_ENTRIES = 1 << 22  # draft logits, or target probabilities, that are held at a time
# The 512 likeliest recorded targets are used, and one in 16 of the others.
_LIKELIEST, _ONE_OF = 512, 16
_LOUDEST = 60.0  # log of a virtual token's mass; next to more, float32 loses everything else


@dataclass(frozen=True, eq=False)
class VirtualMasses:
    """Acceptance on samples for any masses of the virtual tokens.

    Every target token has at most one column of `S`. Scale a sample so that its kept and dynamic
    columns have mass 1 together, and let virtual token c have mass `t_c`:

        q(x) = (f(x) + w(x) t_c(x)) / D,        D = 1 + sum_c t_c

    If `f` or `w` is 0, a token adds `min(p, a s)` to the acceptance: a is w and `s = t_c / D` for
    the members of cluster c, a is f and `s = 1 / D` for the rest. Sorted by `p / a`, with running
    sums of p and a, the sum over such a group takes one binary search. Members that are also
    dynamic tokens are handled separately. All tokens that were not recorded count as one, which
    gives them a little too much: a `min` of sums instead of a sum of `min`.

    Attributes:
        log_masses: `[n, K]` float32, log t before any offset; -inf for a masked virtual token.
        bounds: `[n (K + 1) + 1]` int64, where each group begins in the next three: for each sample
            its clusters in order, then its other tokens.
        ratios: `[e]` float32, p / a, ascending within a group.
        prob_sums, share_sums: `[e + 1]` float64, running sums of p and a.
        named: members that are also dynamic tokens.
        unrecorded: `[n]` float32, p of all tokens that were not recorded.
        covered: `[n, K + 1]` float32, the share of each t_c, and of the rest, on recorded tokens.
    """

    log_masses: Tensor
    bounds: Tensor
    ratios: Tensor
    prob_sums: Tensor
    share_sums: Tensor
    named: Named
    unrecorded: Tensor
    covered: Tensor

    def masses(self, offsets: Tensor | float) -> Tensor:
        """t with offsets: `[n, K]` float32. Offsets are anything that broadcasts to that."""
        return (self.log_masses + offsets).clamp(max=_LOUDEST).exp()

    def acceptance(self, masses: Tensor) -> Tensor:
        """`sum_x min(p, q)` of each sample, `[n]` float64, for t `[n, K]`. Differentiable in t."""
        open_ = torch.nn.functional.pad(masses.double(), (0, 1), value=1.0)
        shares = open_ / open_.sum(1, keepdim=True)  # s of every group
        begin, end = self.bounds[:-1], self.bounds[1:]
        accepted_whole = self._first_above(shares.detach().flatten(), begin, end)
        whole = (self.prob_sums[accepted_whole] - self.prob_sums[begin]).view_as(shares)
        part = (self.share_sums[end] - self.share_sums[accepted_whole]).view_as(shares)
        rates = (whole + part * shares).sum(1)
        beyond = 1 - (self.covered * shares).sum(1)
        rates = rates + torch.minimum(self.unrecorded.double(), beyond.clamp(min=0))
        return rates.index_add(0, self.named.samples, self.named.accepted(shares))

    def mean_acceptance(self, offsets: Tensor | float) -> float:
        return float(self.acceptance(self.masses(offsets)).mean())

    def _first_above(self, shares: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """The first entry of each group whose ratio exceeds the share, by bisection."""
        low, high = begin.clone(), end.clone()
        if not self.ratios.numel():
            return low
        for _ in range(int((end - begin).max()).bit_length()):
            middle = (low + high) // 2
            ratio = self.ratios[middle.clamp(max=self.ratios.numel() - 1)]
            above = (low < high) & (ratio <= shares)
            low, high = torch.where(above, middle + 1, low), torch.where(above, high, middle)
        return low


@dataclass(frozen=True, eq=False)
class Named:
    """Members of clusters that are also dynamic tokens, j of them.

    Attributes:
        samples, clusters: `[j]` int64, the sample and the virtual token of each.
        probs, fixed, weights: `[j]` float32, p, f and w.
    """

    samples: Tensor
    clusters: Tensor
    probs: Tensor
    fixed: Tensor
    weights: Tensor

    def accepted(self, shares: Tensor) -> Tensor:
        """`min(p, q)` of each for the shares `[n, K + 1]` of the virtual tokens and the rest."""
        virtual = self.weights * shares[self.samples, self.clusters]
        return torch.minimum(self.probs.double(), self.fixed * shares[self.samples, -1] + virtual)


@torch.no_grad()
def virtual_masses(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> VirtualMasses:
    """The acceptance of samples as a function of the masses of the drafter's virtual tokens.

    The virtual tokens follow the kept ones; no target token has two columns.
    """
    affinity = drafter.affinity
    widest = max(affinity.draft_size, samples.targets.shape[1])
    blocks = torch.split(torch.arange(len(samples), device="cpu"), max(1, _BLOCK_ENTRIES // widest))
    parts = zip(
        *(_of_block(samples.select(r), int(r[0]), drafter, full_head, temperature) for r in blocks),
        strict=True,
    )
    log_masses, lengths, probs, shares, unrecorded, covered, *named = map(torch.cat, parts)
    return VirtualMasses(
        log_masses=log_masses,
        bounds=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        ratios=probs / shares,
        prob_sums=_running(probs),
        share_sums=_running(shares),
        named=Named(*named),
        unrecorded=unrecorded,
        covered=covered,
    )


def _of_block(
    samples: Samples, first: int, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> tuple[Tensor, ...]:
    """Of samples from `first` on, in the order of `VirtualMasses`; p and a by group and ratio."""
    affinity, hot = drafter.affinity, drafter.vocabulary.draft_size
    columns = drafter.columns(full_head, samples.hidden, samples.contexts)
    logits = columns["draft_logits"].float() / temperature + affinity.bias
    dynamic = columns.get("dynamic_logits", logits[:, :0]).float() / temperature
    rest = torch.cat([logits[:, :hot], dynamic], 1).logsumexp(1, keepdim=True)
    targets, probs, times = _thinned(samples, temperature)
    unrecorded = (1 - samples.target_probs(temperature).sum(1)).clamp(min=0)

    drafts, weights = _column_of(affinity, targets)
    member = drafts >= hot
    fixed = torch.where(member, 0.0, weights * (logits.gather(1, drafts) - rest).exp())
    if "dynamic_tokens" in columns:
        _add_dynamic(fixed, targets, columns["dynamic_tokens"], (dynamic - rest).exp())
    weights = torch.where(member, weights, 0.0)
    both = member & (fixed > 0)
    at = both.nonzero()[:, 0]
    # n min(p, a s) = min(n p, n a s), where one token stands for n.
    probs, fixed, weights = probs * times, fixed * times, weights * times
    named = at + first, drafts[both] - hot, probs[both], fixed[both], weights[both]

    count = affinity.draft_size - hot
    shares = torch.where(member, weights, fixed)
    group = torch.where(member, drafts - hot, count)
    covered = torch.zeros(len(samples), count + 1, dtype=torch.float32, device="cpu")
    covered.scatter_add_(1, group, shares)
    covered[:, count] = fixed.sum(1)
    # Tokens that q never reaches, and those handled separately, form a last group, left out.
    group = torch.where((shares > 0) & ~both, group, count + 1)
    order = (probs / shares).argsort(1)
    group, by_group = group.gather(1, order).sort(dim=1, stable=True)
    order = order.gather(1, by_group)
    lengths = torch.zeros(len(samples), count + 2, dtype=torch.int64, device="cpu")
    lengths.scatter_add_(1, group, torch.ones_like(group))
    grouped = group <= count
    groups = (each.gather(1, order)[grouped] for each in (probs, shares))
    lengths = lengths[:, : count + 1].flatten()
    return logits[:, hot:] - rest, lengths, *groups, unrecorded, covered, *named


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


def _running(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values.double().cumsum(0), (1, 0))
