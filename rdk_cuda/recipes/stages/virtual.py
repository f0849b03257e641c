"""Virtual tokens (DESIGN section 2, "Virtual tokens"), with an offset fitted to samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter, prune_head
from ...dynamic_tokens import Contexts
from ...vocabulary import Vocabulary
from ..choose import sampled_draft_probs
from ..recording import Samples, at_most, held_out_rows

_HELD_OUT = 1 / 3  # of the documents
_MOST_SAMPLES = 2048  # that are used
_BLOCK_ROWS = 256  # samples whose logits are held at a time
_LOUDEST = 60.0  # log of the virtual tokens' mass; next to more, float32 loses everything else


def virtual_drafter(
    full_head: FullHead,
    vocabulary: Vocabulary,
    clusters: Tensor,
    mean_probs: Tensor,
    *,
    dynamic_tokens: Callable[[Contexts], Tensor] | None = None,
) -> PrunedDrafter:
    """The drafter of virtual tokens in closed form (DESIGN section 2): Jensen rows, entropy bias.

    Args:
        clusters: `[V_t]`, from `cluster_pruned_tokens`.
        mean_probs: `[V_t]`, the target's at the temperature of use.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
        >>> clusters, mean_probs = torch.tensor([-1, 0, 0]), torch.tensor([2.0, 1.0, 1.0])
        >>> drafter = virtual_drafter((weight, None), Vocabulary([0], 3), clusters, mean_probs)
        >>> drafter.weight[1], drafter.affinity.bias[1]
        (tensor([0., 3.]), tensor(0.6931))
    """
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    head = prune_head(*full_head, vocabulary, virtual=affinity)
    return PrunedDrafter(vocabulary, affinity, *head, dynamic_tokens)


def calibrate_offset(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> float:
    """The offset of virtual tokens' biases for which the target accepts most; -inf turns them off.

    A third of the documents decides whether they are on; the offset is then fitted to all samples,
    at most 2048 evenly spaced ones. A single document leaves them on. Nearly all of the target has
    to be recorded: with 5 % of its mass missing, half of the gain was lost.
    """
    samples = at_most(samples, _MOST_SAMPLES)
    held = held_out_rows(samples.documents, _HELD_OUT)
    known = VirtualMasses.of(samples, drafter, full_head, temperature)
    if bool(held.any()):
        offset, judging = _best_offset(known.select(~held)), known.select(held)
        if not judging.mean_acceptance(offset) > judging.mean_acceptance(-math.inf):
            return -math.inf
    return _best_offset(known)


def with_offset(drafter: PrunedDrafter, offset: float) -> PrunedDrafter:
    """The drafter with a finite offset added to its virtual tokens' biases."""
    bias = drafter.affinity.bias.clone()
    bias[drafter.vocabulary.draft_size :] += offset
    return replace(drafter, affinity=replace(drafter.affinity, bias=bias))


def _best_offset(known: VirtualMasses) -> float:
    """The best of a search from off (-inf) upwards."""
    middle = float(known.log_total.median())
    if middle == -math.inf:  # all are masked
        return 0.0
    rates: dict[float, float] = {}

    def rate(offset: float) -> float:
        if offset not in rates:
            rates[offset] = known.mean_acceptance(offset)
        return rates[offset]

    # From e^-12 of the other columns' mass to e^4 times that, at the median position.
    step = 1.0
    best = max((-math.inf, 0.0, *(step * k - middle for k in range(-12, 5))), key=rate)
    while best > -math.inf and step > 0.01:
        step /= 3
        best = max((best, best - step, best + step, best - 2 * step, best + 2 * step), key=rate)
    return best


class VirtualMasses(NamedTuple):
    """The acceptance of samples for any offset o of the virtual tokens' biases.

    Scale a sample so that its kept and dynamic columns have mass 1 together. Of that a target token
    has f(x), and of the virtual tokens' mass V the share v(x):

        q(x) = (f(x) + e^o V v(x)) / (1 + e^o V)

    All tokens that were not recorded count as one, which gives them a little too much: a `min` of
    sums instead of a sum of `min`.

    Attributes:
        probs, fixed, shares: `[n, m]` float32, p, f and v of the recorded targets.
        log_total: `[n]` float32, log V before any offset; -inf if all are masked.
    """

    probs: Tensor
    fixed: Tensor
    shares: Tensor
    log_total: Tensor

    @classmethod
    def of(
        cls, samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
    ) -> VirtualMasses:
        """Of a drafter whose virtual tokens follow the kept ones."""
        kept, affinity = drafter.vocabulary, drafter.affinity
        hot = kept.draft_size
        first = int(affinity.row_offsets[hot])
        own = Affinity(
            bias=affinity.bias[hot:],
            row_offsets=affinity.row_offsets[hot:] - first,
            row_targets=affinity.row_targets[first:],
            row_cdf=affinity.row_cdf[first:],
            spread_cdf=affinity.spread_cdf[hot:],
            prior_cdf=affinity.prior_cdf,
        )
        bias = None if drafter.bias is None else drafter.bias[hot:]
        virtual = PrunedDrafter(kept, own, drafter.weight[hot:], bias)
        plain = PrunedDrafter.plain(full_head, kept)
        others = replace(plain, dynamic_tokens=drafter.dynamic_tokens)
        given = full_head, temperature
        fixed, shares = (sampled_draft_probs(samples, one, *given) for one in (others, virtual))
        masses, rest = (log_masses(samples, one, *given) for one in (virtual, others))
        probs = samples.target_probs(temperature)
        return cls(probs, fixed, shares.nan_to_num(0.0), masses - rest)  # NaN: all are masked

    def select(self, rows: Tensor) -> VirtualMasses:
        return VirtualMasses(*(part[rows] for part in self))

    def acceptance(self, offset: float) -> Tensor:
        """`sum_x min(p, q)` of each sample, `[n]` float64."""
        total = (self.log_total + offset).clamp(max=_LOUDEST).exp()[:, None]
        q = (self.fixed + self.shares * total) / (1 + total)
        recorded = torch.minimum(self.probs, q).sum(1, dtype=torch.float64)
        others = (1 - each.sum(1, dtype=torch.float64) for each in (self.probs, q))
        return recorded + torch.minimum(*others).clamp(min=0)

    def mean_acceptance(self, offset: float) -> float:
        return float(self.acceptance(offset).mean())


@torch.no_grad()
def log_masses(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """The logarithm of the mass of all columns at each sample, `[n]` float32."""
    found = []
    for rows in torch.arange(len(samples), device="cpu").split(_BLOCK_ROWS):
        part = samples.select(rows)
        columns = drafter.columns(full_head, part.hidden, part.contexts)
        logits = columns["draft_logits"].float() / temperature + drafter.affinity.bias
        dynamic = columns.get("dynamic_logits", logits[:, :0]).float() / temperature
        found.append(torch.cat([logits, dynamic], 1).logsumexp(1))
    return torch.cat(found)
