"""An evaluation: a row for each drafter, measured on held-out text, as CSV and as JSON.

    temperature           0 for greedy
    keep                  share of the vocabulary that the head keeps, 1 for the full drafter
    method, tuned         as in `stages.pruning`, and what calibration chose, in words
    head_rows             V_d, `virtual_rows` of them virtual
    dynamic_columns       mean of a position
    acceptance            mean of `sum_x min(p, q)`, with the ends of its 95 % interval
    recovered             share of the acceptance lost to pruning that comes back, likewise
    accepted_length       expected number of accepted drafts, of `draft_length`
    head_bytes            bytes of weights that the head reads for a position, as they are saved
    head_flops            floating-point operations of the head for a position
    speed_up              predicted, over the target alone: the median over rounds of measuring,
                          with the ends of the middle 80 %
    doubt                 a warning, if the times (and so the speed-up) should not be trusted
    positions, windows, documents
                          what was measured on

A figure that does not apply is empty in the CSV file and null in JSON.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import __version__, build_info
from ...files import write_json
from .written import write_csv

RESAMPLES = 4000
COVERAGE = 0.95
FORMAT, FORMAT_VERSION = "rdk_cuda.evaluation", 1

TIMED = ("speed_up", "speed_up_low", "speed_up_high", "doubt")  # of this moment and machine

FIELDS = (
    *("temperature", "keep", "method"),
    *("head_rows", "virtual_rows", "dynamic_columns"),
    *("acceptance", "acceptance_low", "acceptance_high"),
    *("recovered", "recovered_low", "recovered_high"),
    *("draft_length", "accepted_length", "head_bytes", "head_flops"),
    *TIMED,
    *("positions", "windows", "documents", "tuned"),
)


Row = dict[str, Any]
"""A value or None for each of `FIELDS`."""


def evaluation_row(
    acceptance: Interval, recovered: Interval | None, **others: str | float | None
) -> Row:
    """A row, with None for what is not given."""
    row: Row = {**dict.fromkeys(FIELDS), **others}
    for name, interval in (("acceptance", acceptance), ("recovered", recovered)):
        if interval is not None:
            row |= {name: interval.value}
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def write_evaluation(rows: Sequence[Row], about: Mapping[str, Any], path: Path) -> Path:
    """Write `path` as JSON, and the same rows as CSV next to it, whose path is returned."""
    table = path.with_suffix(".csv")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    write_csv(rows, FIELDS, table)
    write_json({**header, **about, "rows": list(rows)}, path)
    return table


def versions() -> dict[str, Any]:
    return {
        "rdk_cuda": __version__,
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "build": build_info(),
    }


class Interval(NamedTuple):
    """An estimate with the ends of its 95 % interval; NaN if the data cannot tell."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Intervals from resampled documents; everything uses the same resamples (paired).

    Positions of one document are alike, so whole documents are drawn. Percentiles of the resamples
    of n documents are too narrow by `sqrt((n - 1) / n)`, and by what Student's t has over the
    normal distribution (Hesterberg, arXiv:1411.5279, section 4): the intervals are wider by both.
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
