"""Offsets of virtual tokens that maximise acceptance on samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..affinity import Affinity
from .drafter import FullHead, PrunedDrafter
from .recording.samples import Samples, at_most, held_out_rows
from .virtual_masses import VirtualMasses, virtual_masses

__all__ = ["calibrate_offsets", "with_offsets"]

HELD_OUT = 1 / 3  # of the documents
MOST_SAMPLES = 2048  # that are used
STEPS = 40  # of gradient ascent


def calibrate_offsets(
    samples: Samples,
    drafter: PrunedDrafter,
    full_head: FullHead,
    temperature: float,
    *,
    held_out: float = HELD_OUT,
) -> Tensor:
    """Offsets, added to the biases of virtual tokens, for which the target accepts most.

    First it finds one offset for all virtual tokens, from off (-inf) upwards. Then it finds one for
    each, by projected gradient ascent on the masses `exp(offset)`, where off is the boundary 0.
    On the samples that they are fitted to, neither step makes things worse. Held-out documents
    decide between all off, one for all and one for each; the winner is then fitted to all samples.
    The best offsets depend on the dynamic tokens, so the drafter needs its `dynamic_tokens`.

    Args:
        samples: recorded positions; at most 2048 evenly spaced ones are used. Record all or nearly
            all of the target: virtual tokens are for its tail. With 5 % of its mass unrecorded
            (demo models, T = 1, 25 % kept) the best offset seemed to be -1.4 and was 0.3, and half
            of the gain of virtual tokens was lost.
        drafter: its virtual tokens follow the kept ones (`virtual_drafter`).
        full_head: for the logits of dynamic tokens.
        temperature: positive, a recorded one.
        held_out: the share of the documents that is held out. With 0, the offsets are never worse
            on the samples than one for all, nor than all off. With a single document nothing can be
            held out, and there is one offset for all.

    Returns:
        `[K]` float32, for `with_offsets`. A masked virtual token stays masked.

    Raises:
        ValueError: as `virtual_masses`; no samples; a share outside [0, 1).

    Example:
        >>> offsets = calibrate_offsets(samples, drafter, full_head, 0.7)   # doctest: +SKIP
        >>> drafter = with_offsets(drafter, offsets)                        # doctest: +SKIP
    """
    samples = at_most(samples, MOST_SAMPLES)
    held = held_out_rows(samples.documents, held_out)

    def known(part: Samples) -> VirtualMasses:
        return virtual_masses(part, drafter, full_head, temperature)

    for_each = held_out == 0
    if bool(held.any()):
        fitted, judging = known(samples.select(~held)), known(samples.select(held))
        common = _offset_for_all(fitted)
        off = torch.full_like(common, -math.inf)
        candidates = off, common, _offset_for_each(fitted, common)
        rates = [judging.mean_acceptance(offsets) for offsets in candidates]
        best = rates.index(max(rates))  # on a tie the first: off costs least
        if best == 0:
            return off
        for_each = best == 2
    whole = known(samples)
    common = _offset_for_all(whole)
    return _offset_for_each(whole, common) if for_each else common


def with_offsets(drafter: PrunedDrafter, offsets: Tensor | Sequence[float]) -> PrunedDrafter:
    """The drafter with offsets added to the biases of its virtual tokens; -inf turns one off.

    Args:
        offsets: `[K]`, one for each drafter token after those of the vocabulary.

    Raises:
        ValueError: another shape.

    Example:
        >>> from rdk_cuda import Affinity, Vocabulary
        >>> vocabulary, clusters = Vocabulary([0], 3), torch.tensor([-1, 0, 0])
        >>> affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.ones(3))
        >>> drafter = PrunedDrafter(vocabulary, affinity, torch.zeros(2, 1))
        >>> with_offsets(drafter, [0.5]).affinity.bias  # log 2 + 0.5
        tensor([0.0000, 1.1931])
    """
    affinity, hot = drafter.affinity, drafter.vocabulary.draft_size
    added = torch.as_tensor(offsets, dtype=torch.float32, device="cpu")
    if added.shape != (affinity.draft_size - hot,):
        raise ValueError(
            f"with_offsets: offsets has shape {list(added.shape)}; needs "
            f"[{affinity.draft_size - hot}], one for each virtual token"
        )
    bias = affinity.bias.clone()
    bias[hot:] += added
    off = bias == -math.inf
    lengths = affinity.row_offsets.diff()
    used = ~off.repeat_interleave(lengths)  # a masked row is empty
    ends = torch.where(off, 0, lengths).cumsum(0).int()
    masked = Affinity(
        bias=bias,
        row_offsets=torch.nn.functional.pad(ends, (1, 0)),
        row_targets=affinity.row_targets[used],
        row_cdf=affinity.row_cdf[used],
        spread_cdf=affinity.spread_cdf.where(~off[:, None], 0),
        prior_cdf=affinity.prior_cdf,
    )
    return replace(drafter, affinity=masked)


@torch.no_grad()
def _offset_for_all(known: VirtualMasses) -> Tensor:
    """The best single offset, -inf if virtual tokens only hurt: `[K]`, all alike."""
    together = known.log_masses.logsumexp(1)
    middle = float(together.median())
    if middle == -math.inf:  # all are masked
        return torch.zeros(known.log_masses.shape[1], dtype=torch.float32, device="cpu")
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
    return torch.full((known.log_masses.shape[1],), best, dtype=torch.float32, device="cpu")


def _offset_for_each(known: VirtualMasses, common: Tensor) -> Tensor:
    """The best on the path of projected Adam from the common offset: `[K]`."""
    off = bool((common == -math.inf).all())
    start = torch.zeros_like(common) if off else common
    unit = known.masses(start)
    factors = torch.full_like(start, 0.0 if off else 1.0).requires_grad_()
    adam = torch.optim.Adam([factors], lr=0.1)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, total_iters=STEPS)
    best, best_rate = factors.detach().clone(), -math.inf
    for _ in range(STEPS + 1):
        rate = known.acceptance(unit * factors).mean()
        if rate.item() > best_rate:
            best, best_rate = factors.detach().clone(), rate.item()
        adam.zero_grad()
        (-rate).backward()
        adam.step()
        decay.step()
        with torch.no_grad():
            factors.clamp_(min=0)
    fitted = start + best.log()
    # Sums in another order may differ in the last digit; the common offset wins ties.
    worse = known.mean_acceptance(fitted) <= known.mean_acceptance(common)
    return common if worse else fitted
