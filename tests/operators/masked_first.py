"""Masking first, as an engine without truncation in its verification does it, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A membership nearer than this to its boundary may turn by rounding: relative to the largest
# probability for min-p, to the whole mass for top-p, in logits for top-k.
NEAR = 1e-6


@dataclass(frozen=True)
class Masked:
    """One row.

    Attributes:
        logits: the row with -inf for what is left out; None: no distribution.
        near: whether float64 shows a membership within `NEAR` of its boundary.
    """

    logits: Tensor | None
    near: bool


def masked_first(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, words: Tensor | None
) -> Masked:
    """Mask, temperature, min-p, top-k, top-p, as vLLM orders them; all equal values stay."""
    if words is not None:
        bits = words.long().unsqueeze(1) >> torch.arange(32) & 1
        logits = logits.masked_fill(bits.flatten()[: logits.numel()] == 0, -math.inf)
    if not bool((logits > -math.inf).any()) or temperature == 0:
        return Masked(logits if bool((logits > -math.inf).any()) else None, False)
    z = logits.double() / temperature
    near = False
    ratios = torch.exp(z - z.max())
    if min_p > 0:
        near |= bool(((ratios - min_p).abs() < NEAR * min_p)[ratios < 1].any())
        z = z.masked_fill(ratios < min_p, -math.inf)
    if 0 < top_k < z.numel():
        least = z.topk(top_k).values[-1]
        below = z[z < least]
        near |= below.numel() > 0 and bool(least - below.max() < NEAR)
        z = z.masked_fill(z < least, -math.inf)
    if top_p < 1:
        values, inverse = z.unique(return_inverse=True)  # ascending, equal ones together
        probs = torch.zeros_like(values).index_add_(0, inverse, z.softmax(0))
        before = probs.flip(0).cumsum(0).flip(0) - probs  # of all that are larger
        near |= bool(((before - top_p).abs() < NEAR)[values > -math.inf].any())
        z = z.masked_fill((before >= top_p)[inverse], -math.inf)
    return Masked(logits.masked_fill(z == -math.inf, -math.inf), near)
