"""Find the columns that a mask, top-k, top-p and min-p keep: DESIGN section 4.

Decisions are in float32 and integers, whatever dtype the reference computes in, because every
implementation has to keep the same columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_COEFFICIENTS = (
    "0x1.6a2318p-10",
    "0x1.123a8ep-7",
    "0x1.5558f6p-5",
    "0x1.555490p-3",
    "0x1.fffffcp-2",
)


@dataclass(frozen=True)
class Limits:
    """Top-k, top-p and min-p of one row; these values leave it as it is."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(
        cls, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None, row: int
    ) -> Limits:
        """Take those of one row, of tensors that may be absent."""
        return cls(
            0 if top_k is None else int(top_k.reshape(-1)[row]),
            1.0 if top_p is None else float(top_p.reshape(-1)[row]),
            0.0 if min_p is None else float(min_p.reshape(-1)[row]),
        )

    @property
    def usable(self) -> bool:
        """False for NaN, too."""
        return self.top_k >= 0 and 0 < self.top_p <= 1 and 0 <= self.min_p <= 1


def without_forbidden(logits: Tensor, words: Tensor | None) -> Tensor:
    """Set one row of logits to -inf where ``words``, int32, have no bit; None: as it is."""
    if words is None:
        return logits
    tokens = torch.arange(logits.shape[0], device="cpu")
    bits = words[tokens // 32] >> (tokens % 32).int()
    return logits.masked_fill(bits & 1 == 0, -math.inf)


def threshold(z: Tensor, limits: Limits) -> float:
    """Find the least ``z`` that is kept: the largest of the three rules'."""
    largest = z.max()
    least = -math.inf
    if limits.min_p > 0:
        logarithm = torch.tensor(math.log(limits.min_p), dtype=torch.float32, device="cpu")
        least = float(largest + logarithm)
    if 0 < limits.top_k < z.shape[0]:
        least = max(least, float(z.topk(limits.top_k).values[-1]))
    if limits.top_p < 1:
        values = z[z >= least].sort(descending=True).values
        running = masses(values - largest).cumsum(0)
        wanted = max(1, math.ceil(limits.top_p * float(running[-1])))
        least = max(least, float(values[int((running >= wanted).nonzero()[0])]))
    return least


def masses(x: Tensor) -> Tensor:
    """Compute ``floor(2^40 exp(x))`` as int64, of float32 ``x <= 0``."""
    return (exponential(x).double() * 2.0**40).long()


def exponential(x: Tensor) -> Tensor:
    """Compute float32 ``exp`` as in section 5, to the bit: each operation is rounded by itself."""
    x = x.clamp(-88.0, 89.0)
    shift = torch.tensor(12582912.0 + 127.0, dtype=torch.float32, device="cpu")
    biased = x * torch.tensor(_LOG2_E, dtype=torch.float32, device="cpu") + shift
    n = biased - shift
    r = x - n * torch.tensor(_LN2_HIGH, dtype=torch.float32, device="cpu")
    r = r - n * torch.tensor(_LN2_LOW, dtype=torch.float32, device="cpu")
    p = torch.full_like(r, float.fromhex(_COEFFICIENTS[0]))
    for coefficient in _COEFFICIENTS[1:]:
        p = p * r + float.fromhex(coefficient)
    power = torch.where(n < -126.5, 0.0, torch.exp2(n.double())).float()
    return (p * (r * r) + r + 1.0) * power
