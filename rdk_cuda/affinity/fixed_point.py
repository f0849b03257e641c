"""Probabilities as whole numbers of 2^-32 (DESIGN section 4, "One distribution, not two").

Sums of such numbers are exact, so the running sums that are sampled from and the weights that are
verified against are the same distribution, whatever the size of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 1 << 32
"""Probability 1, in units of 2^-32."""


def apportion(masses: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Round the shares of each group to units that sum to exactly `ONE`.

    The method of largest remainders: every share is rounded down and the units left over go to
    the largest fractions, one each, the lowest index first among equals. So every result is less
    than one unit away from its share.

    Args:
        masses: `[n]` float64, non-negative and finite.
        groups: `[n]` int64 in `[0, num_groups)`, the group of each mass; any order.

    Returns:
        `[n]` int64. A group without mass gets no units.
    """
    total = torch.zeros(num_groups, dtype=torch.float64, device="cpu").index_add_(0, groups, masses)
    shares = torch.where(masses > 0, masses / total[groups] * ONE, 0.0)
    units = shares.floor().to(torch.int64)
    # float64 sums of up to a million masses are good to a fraction of a unit, so what is left
    # over lies between zero and the number of fractions in the group.
    given = torch.zeros(num_groups, dtype=torch.int64, device="cpu").index_add_(0, groups, units)
    left_over = torch.where(total > 0, ONE - given, 0)

    order = (shares - units).argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]
    sizes = torch.bincount(groups, minlength=num_groups)
    first = sizes.cumsum(0) - sizes
    place = torch.arange(order.numel(), device="cpu") - first[groups[order]]
    units[order] += place < left_over[groups[order]]
    return units


def running_sums(units: Tensor, offsets: Tensor) -> Tensor:
    """Sum up to each unit, anew in each of the rows that `offsets` delimits."""
    sums = units.cumsum(0)
    before_row = torch.nn.functional.pad(sums, (1, 0))[offsets[:-1]]
    return sums - before_row.repeat_interleave(offsets.diff())


def differences(sums: Tensor, offsets: Tensor) -> Tensor:
    """Invert `running_sums`."""
    previous = sums.roll(1)
    previous[offsets[:-1][offsets.diff() > 0]] = 0
    return sums - previous


def to_float64(units: Tensor) -> Tensor:
    """Convert units to probabilities, exactly."""
    return units.to(torch.float64) / ONE


def to_float32(units: Tensor) -> Tensor:
    """Convert units to probabilities, correctly rounded."""
    return to_float64(units).to(torch.float32)
