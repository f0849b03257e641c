"""Whether the rows of the acceptance report reach what the project has set itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rdk_cuda.calibration.methods import FIRST_ORDER, PRUNED, RECOMMENDED
from rdk_cuda.commands.evaluation_files import Row

from .acceptance_runs import DEMO, PARTS, SHARP

__all__ = ["MET", "MISSED", "UNKNOWN", "Verdict", "below_pruned", "verdicts"]

MET, MISSED, UNKNOWN = "met", "missed", "not measured"

TEMPERATURES = (1.0, 0.7)
SHARES = {  # of the loss, by part, pair and share of the vocabulary kept
    ("methods", DEMO): {0.25: 0.95, 0.0625: 0.90},
    ("sharp", SHARP): {0.25: 0.85, 0.0625: 0.80},
}
EVERYWHERE = [  # parts that have the recommended method
    name for name, runs in PARTS.items() if any(RECOMMENDED in run.methods for run in runs)
]
MOST_VIRTUAL, MOST_DYNAMIC = 64, 128
CONSTANT = 0.1  # of first-order acceptance: (highest - lowest) / mean over the prunings

Rows = Mapping[str, Sequence[Row]]
"""By part."""


class Verdict(NamedTuple):
    """A target and what was measured, in words, and the row that says so where it is one."""

    promise: str
    measured: str
    interval: str
    target: str
    verdict: str
    row: Row | None = None


def verdicts(parts: Rows) -> list[Verdict]:
    """One for each target; of parts that are not there, that they were not measured."""
    return [
        *recovered_shares(parts),
        size(parts),
        never_below(parts),
        *(first_order_is_constant(parts.get("methods", ()), at) for at in TEMPERATURES),
    ]


def recovered_shares(parts: Rows) -> list[Verdict]:
    """The recommended method at each pair, pruning and temperature."""
    found = []
    for (part, pair), shares in SHARES.items():
        for keep, share in shares.items():
            for temperature in TEMPERATURES:
                promise = f"recovered, {pair} pair, {percent(keep)} kept, T = {temperature:g}"
                rows = [
                    row
                    for row in parts.get(part, ())
                    if (row["method"], row["pair"]) == (RECOMMENDED, pair)
                    and (row["keep"], row["temperature"]) == (keep, temperature)
                ]
                found.append(recovered(promise, rows, share))
    return found


def recovered(promise: str, rows: Sequence[Row], share: float) -> Verdict:
    """Of the one row there is, or none."""
    target = f"≥ {percent(share)}"
    if not rows:
        return Verdict(promise, "", "", target, UNKNOWN)
    (row,) = rows
    if row["recovered"] is None:
        return Verdict(promise, "nothing was lost", "", target, MET)
    # Rounded down: no figure may look like the target that it misses.
    measured = percent(math.floor(1000 * row["recovered"] + 1e-9) / 1000, 1)
    verdict = judged(row["recovered"] >= share)
    return Verdict(promise, measured, interval(row), target, verdict, row)


def size(parts: Rows) -> Verdict:
    """How large the recommended method is where its shares are judged."""
    promise = "with at most so many virtual rows and dynamic columns"
    target = f"≤ {MOST_VIRTUAL} and {MOST_DYNAMIC}"
    rows = [
        row
        for part, _ in SHARES
        for row in parts.get(part, ())
        if row["method"] == RECOMMENDED and row["temperature"] in TEMPERATURES
    ]
    if any(part not in parts for part, _ in SHARES):
        return Verdict(promise, "", "", target, UNKNOWN)
    virtual = max(row["virtual_rows"] for row in rows)
    dynamic = max(row["dynamic_columns"] for row in rows)
    met = virtual <= MOST_VIRTUAL and dynamic <= MOST_DYNAMIC
    measured = f"{virtual} and, on average, {dynamic:.0f}"
    return Verdict(promise, measured, "", target, judged(met))


def never_below(parts: Rows) -> Verdict:
    """The recommended method beside the pruned drafter, everywhere in the report."""
    promise = "the recommended method is nowhere below the pruned drafter"
    compared, below = beside_pruned(parts), below_pruned(parts)
    if not compared:
        return Verdict(promise, "", "", "0 below", UNKNOWN)
    measured = f"{len(below)} of {len(compared)} below"
    if not below:
        missing = [name for name in EVERYWHERE if name not in parts]
        return Verdict(promise, measured, "", "0 below", UNKNOWN if missing else MET)
    worst, pruned = min(below, key=lambda pair: pair[0]["acceptance"] - pair[1]["acceptance"])
    measured += f", the worst by {pruned['acceptance'] - worst['acceptance']:.4f}"
    return Verdict(promise, measured, "", "0 below", MISSED)


def below_pruned(parts: Rows) -> list[tuple[Row, Row]]:
    """Rows of the recommended method that end below the pruned drafter, and those of that one."""
    return [
        (row, pruned)
        for row, pruned in beside_pruned(parts)
        if row["acceptance"] < pruned["acceptance"]
    ]


def beside_pruned(parts: Rows) -> list[tuple[Row, Row]]:
    """Each row of the recommended method and the one of the pruned drafter that belongs to it."""
    pairs = []
    for rows in parts.values():
        alone = {where(row): row for row in rows if row["method"] == PRUNED}
        chosen = [row for row in rows if row["method"] == RECOMMENDED and where(row) in alone]
        pairs += [(row, alone[where(row)]) for row in chosen]
    return pairs


def where(row: Row) -> tuple[object, ...]:
    """What rows that can be compared have in common."""
    return tuple(row[name] for name in ("pair", "corpus", "calibrated_on", "temperature", "keep"))


def first_order_is_constant(rows: Sequence[Row], temperature: float) -> Verdict:
    """The paper's first-order method over all prunings."""
    promise = f"first-order RDK is about constant in the pruning, T = {temperature:g}"
    target = f"range ≤ {percent(CONSTANT)} of the mean"
    chosen = [row for row in rows if row["temperature"] == temperature]
    values = [row["acceptance"] for row in chosen if row["method"] == FIRST_ORDER]
    alone = [row["acceptance"] for row in chosen if row["method"] == PRUNED]
    if len(values) < 2:
        return Verdict(promise, "", "", target, UNKNOWN)
    measured = f"{spread(values)}, range {percent(relative_range(values), 1)} of the mean"
    if len(alone) > 1:
        measured += f" (pruned drafter: {percent(relative_range(alone), 1)})"
    return Verdict(promise, measured, "", target, judged(relative_range(values) <= CONSTANT))


def relative_range(values: Sequence[float]) -> float:
    """(highest - lowest) / mean."""
    return (max(values) - min(values)) * len(values) / sum(values)


def spread(values: Sequence[float]) -> str:
    """Lowest to highest."""
    return f"{min(values):.3f}–{max(values):.3f}"


def judged(met: bool) -> str:
    """In one word."""
    return MET if met else MISSED


def interval(row: Row) -> str:
    """Of the recovered share; empty where the data cannot tell."""
    ends = [row[f"recovered_{end}"] for end in ("low", "high")]
    if any(end is None or math.isnan(end) for end in ends):
        return ""
    return f"[{100 * ends[0]:.0f}, {100 * ends[1]:.0f}]"


def percent(share: float, digits: int | None = None) -> str:
    """With so many digits behind the point, or as few as it needs."""
    return f"{100 * share:.4g} %" if digits is None else f"{100 * share:.{digits}f} %"
