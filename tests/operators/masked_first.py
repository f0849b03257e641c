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
    """
    Attributes:
        logits: `[R, V]`, with -inf for what is left out; all of it where nothing is allowed.
        near: `[R]`, whether float64 shows a membership within `NEAR` of its boundary.
    """

    logits: Tensor
    near: Tensor


def masked_first(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    words: Tensor | None,
) -> Masked:
    """Mask, temperature, min-p, top-k, top-p, as vLLM orders them; all equal values stay.

    Args:
        logits: `[R, V]`. words: `[R, ceil(V / 32)]`, or None. The others: `[R]`.
    """
    size = logits.shape[1]
    if words is not None:
        bits = words.long().unsqueeze(2) >> torch.arange(32) & 1
        logits = logits.masked_fill(bits.flatten(1)[:, :size] == 0, -math.inf)
    scale = torch.where(temperature == 0, 1.0, temperature).double()[:, None]
    z, order = (logits.double() / scale).sort(1, descending=True)
    near = torch.zeros_like(z, dtype=torch.bool)

    least = min_p.double()[:, None]
    ratios = torch.exp(z - z[:, :1])
    near |= (least > 0) & (ratios < 1) & ((ratios - least).abs() < NEAR * least)
    kept = (ratios >= least) | (least == 0)

    z = z.masked_fill(~kept, -math.inf)
    on = (top_k > 0) & (top_k < size)
    last = z.gather(1, torch.where(on, top_k, size)[:, None].long() - 1)
    kept = (z >= last) | ~on[:, None]
    near |= ~kept & (last - z < NEAR)

    z = z.masked_fill(~kept, -math.inf)
    probs = z.softmax(1)
    first = torch.cat([torch.ones_like(on)[:, None], z[:, 1:] < z[:, :-1]], 1)
    first_equal = torch.where(first, torch.arange(size), 0).cummax(1).values
    before = (probs.cumsum(1) - probs).gather(1, first_equal)  # of all that are larger
    share = top_p.double()[:, None]
    judged = (share < 1) & (z > -math.inf) & (before > 0)  # the largest stay whatever the share
    near |= judged & ((before - share).abs() < NEAR)
    z = z.masked_fill((share < 1) & (before >= share), -math.inf)

    greedy = temperature == 0
    left_out = torch.zeros_like(near).scatter(1, order, z == -math.inf) & ~greedy[:, None]
    return Masked(logits.masked_fill(left_out, -math.inf), near.any(1) & ~greedy)
