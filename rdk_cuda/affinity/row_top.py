"""The likeliest target of every row of an affinity, exactly (DESIGN section 2, temperature 0).

The largest entry of `A[i] = S[i] + U[i] P` is either one of the few entries of `S[i]`, or a token
that no other token beats in every prior that the row uses. So a row is compared on its entries of
`S` and on the Pareto front of the priors, never on the whole vocabulary. Masses are compared as
integers where float64 cannot tell them apart, so a tie is a tie.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

_FRONT_ROUNDS = 64  # a front longer than this is not refined: its superset is as correct
_ROUNDING = 1 - 2.0**-48  # a float64 sum of four products of 32-bit numbers is closer than this
_BLOCK_ENTRIES = 1 << 21  # bounds the memory of one block of rows


class _Entries(NamedTuple):
    """Entries of `A`: of mass `high * 2^-48 + low * 2^-64`, with `low < 2^16`."""

    rows: Tensor
    targets: Tensor
    high: Tensor
    low: Tensor


def row_top(
    rows: Tensor, targets: Tensor, units: Tensor, spread_units: Tensor, prior_units: Tensor
) -> Tensor:
    """Return the target with the largest mass in each row of `A`, the lowest id on ties.

    Of the entries of `S`, int64 `[nnz]` each, and the units of `U` `[V_d, R]` and `P` `[R, V_t]`.
    The result is `[V_d]` int32, -1 for a row without mass.
    """
    candidates = [_entries(rows, targets, units, spread_units, prior_units)]
    uses = spread_units > 0
    for pattern in product((False, True), repeat=uses.shape[1]):
        wanted = torch.tensor(pattern, dtype=torch.bool, device="cpu")
        members = (uses == wanted).all(1).nonzero().flatten()
        if not any(pattern) or members.numel() == 0:
            continue
        front = _front(prior_units[list(pattern)])
        for block in torch.split(members, max(1, _BLOCK_ENTRIES // front.numel())):
            approximate = spread_units[block].double() @ prior_units[:, front].double()
            least = approximate.amax(1, keepdim=True) * _ROUNDING
            row, place = (approximate >= least).nonzero().unbind(1)
            nothing = torch.zeros_like(row)  # what S adds there is counted above
            candidates.append(
                _entries(block[row], front[place], nothing, spread_units, prior_units)
            )
    largest = _largest(
        _Entries(*(torch.cat(parts) for parts in zip(*candidates, strict=True))), uses.shape[0]
    )
    top = torch.full((uses.shape[0],), -1, dtype=torch.int32, device="cpu")
    top[largest.rows] = largest.targets.to(torch.int32)
    return top


def _entries(
    rows: Tensor, targets: Tensor, units: Tensor, spread_units: Tensor, prior_units: Tensor
) -> _Entries:
    # In units of 2^-64 a sum may be 2^64 itself, hence two words.
    high, low = units << 16, torch.zeros_like(units)
    for spread, prior in zip(spread_units.unbind(1), prior_units.unbind(0), strict=True):
        high = high + spread[rows] * (prior[targets] >> 16)
        low = low + spread[rows] * (prior[targets] & 0xFFFF)
    return _Entries(rows, targets, high + (low >> 16), low & 0xFFFF)


def _largest(entries: _Entries, num_rows: int) -> _Entries:
    for key in ("high", "low", "targets"):
        values = -entries.targets if key == "targets" else getattr(entries, key)
        best = torch.full(
            (num_rows,), torch.iinfo(torch.int64).min, dtype=torch.int64, device="cpu"
        )
        best = best.scatter_reduce(0, entries.rows, values, "amax")
        won = values == best[entries.rows]
        entries = _Entries(*(part[won] for part in entries))
    return entries


def _front(prior_units: Tensor) -> Tensor:
    """Ids, ascending, among which `sum_r u_r P[r]` has its lowest maximiser for every `u > 0`."""
    left = torch.arange(prior_units.shape[1], device="cpu")
    found = []
    for _ in range(_FRONT_ROUNDS):
        points = prior_units[:, left]
        best = points.sum(0).argmax()  # nothing exceeds it; the first one, so the lowest id
        found.append(left[best])
        left = left[(points > points[:, best, None]).any(0)]
        if left.numel() == 0:
            break
    return torch.cat([torch.stack(found), left]).sort().values
