"""Virtual tokens (DESIGN section 2, "Virtual tokens"), with an offset fitted to samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter, prune_head
from ...dynamic_tokens import Contexts
from ...vocabulary import Vocabulary
from ..recording import Samples, at_most, held_out_rows
from .virtual_masses import VirtualMasses, virtual_masses

_HELD_OUT = 1 / 3  # of the documents
_MOST_SAMPLES = 2048  # that are used


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

    def known(part: Samples) -> VirtualMasses:
        return virtual_masses(part, drafter, full_head, temperature)

    if bool(held.any()):
        judging, offset = known(samples.select(held)), _best_offset(known(samples.select(~held)))
        if not judging.mean_acceptance(offset) > judging.mean_acceptance(-math.inf):
            return -math.inf
    return _best_offset(known(samples))


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
