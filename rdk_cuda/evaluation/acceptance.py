"""How much of a draft the target accepts: the mean of `sum_x min(p, q)`, exact, not sampled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from ..calibration.reading import Read, Window
from ..drafter import FullHead, PrunedDrafter
from ..functional import overlap, redistribute

RESAMPLES = 4000
COVERAGE = 0.95


class Interval(NamedTuple):
    """An estimate with the ends of its 95 % interval; NaN if the data cannot tell."""

    value: float
    low: float
    high: float


@torch.no_grad()
def measure_acceptance(
    read: Read,
    full_head: FullHead,
    drafters: Mapping[float, Sequence[PrunedDrafter]],
    windows: Iterable[Window],
) -> dict[float, Tensor]:
    """Acceptance of drafters at the same positions of a text, at one or more temperatures.

    Nothing of width `V_t` is kept from one window to the next. At temperature 0 a position counts
    1 if the greedy draft is the target's greedy choice (DESIGN section 2, "Temperature 0").

    Args:
        read: both models' view of token ids.
        drafters: those of each temperature.
        windows: all of one length.

    Returns:
        For each temperature `[drafters, windows, n]` float32, n as of `Reading`.
    """
    rates: dict[float, list[Tensor]] = {temperature: [] for temperature in drafters}
    for window in windows:
        ids = torch.tensor([window.ids], dtype=torch.int64, device="cpu")
        logits, hidden = (rows[0].float().cpu() for rows in read(ids))
        contexts = window.contexts[-len(hidden) :]
        for temperature, chosen in drafters.items():
            each = [
                _acceptance(
                    logits, drafter, temperature, **drafter.columns(full_head, hidden, contexts)
                )
                for drafter in chosen
            ]
            rates[temperature].append(torch.stack(each))
    return {temperature: torch.stack(parts, dim=1) for temperature, parts in rates.items()}


def _acceptance(
    target_logits: Tensor, drafter: PrunedDrafter, temperature: float, **columns: Tensor
) -> Tensor:
    """`[n]`; greedy, 1 where both choose the same token."""
    if temperature > 0:
        return overlap(target_logits, affinity=drafter.affinity, temperature=temperature, **columns)
    q = redistribute(affinity=drafter.affinity, temperature=0.0, **columns)
    return q.gather(1, target_logits.argmax(1, keepdim=True))[:, 0]


class Bootstrap:
    """Intervals from resampled documents; everything uses the same resamples (paired).

    Positions of one document are alike, so whole documents are drawn, not positions. Percentiles of
    the resamples of n documents are too narrow by `sqrt((n - 1) / n)`, and by what Student's t has
    over the normal distribution (Hesterberg, arXiv:1411.5279, section 4): the intervals are wider
    by both.

    Args:
        documents: which document each window is from.
    """

    def __init__(self, documents: Sequence[int], *, seed: int) -> None:
        of_window = torch.tensor(documents, dtype=torch.int64, device="cpu")
        self.members, self.place = of_window.unique(return_inverse=True)
        generator = torch.Generator().manual_seed(seed)
        count = len(self.members)
        draws = torch.randint(count, (RESAMPLES, count), generator=generator, device="cpu")
        times = torch.zeros(draws.shape, dtype=torch.float64, device="cpu")
        self.resamples = times.scatter_add_(1, draws, torch.ones_like(times))

    def mean(self, rates: Tensor) -> Interval:
        """The mean of `[windows, positions]`."""
        return self.ratio(rates, torch.ones_like(rates))

    def ratio(self, numerator: Tensor, denominator: Tensor) -> Interval:
        """The ratio of two sums, over `[windows, positions]` each."""
        top, bottom = self.by_document(numerator), self.by_document(denominator)
        value = float(top.sum() / bottom.sum())
        bottoms = self.resamples @ bottom
        if len(self.members) < 2 or not bool((bottoms > 0).all()):
            return Interval(value, math.nan, math.nan)
        tail = (1 - COVERAGE) / 2
        ends = torch.tensor([tail, 1 - tail], dtype=torch.float64, device="cpu")
        off = (self.resamples @ top / bottoms).quantile(ends) - value
        low, high = (value + widening(len(self.members)) * off).tolist()
        return Interval(value, low, high)

    def by_document(self, rates: Tensor) -> Tensor:
        """`[windows, positions]` summed to `[documents]`."""
        sums = torch.zeros(len(self.members), dtype=torch.float64, device="cpu")
        return sums.index_add_(0, self.place, rates.double().sum(1))


def widening(documents: int) -> float:
    """Of intervals of so many documents, at least two; t by Abramowitz and Stegun, 26.7.5."""
    free, z = documents - 1, NormalDist().inv_cdf((1 + COVERAGE) / 2)
    t = z + (z**3 + z) / 4 / free + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / free**2
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / free**3
    t += (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / free**4
    return t / z * math.sqrt(documents / free)


def recovered_share(
    bootstrap: Bootstrap, method: Tensor, pruned: Tensor, full: Tensor
) -> Interval | None:
    """The share of the acceptance lost to pruning that a method recovers; None if none is lost."""
    if not float((full - pruned).mean()) > 0:
        return None
    return bootstrap.ratio(method - pruned, full - pruned)
