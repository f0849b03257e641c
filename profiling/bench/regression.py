"""`python -m profiling.bench.regression OLD NEW`: which rows became slower or faster.

Rows of profiling.bench that agree in case, device and threads are compared. A median counts as
changed if it moved by more than the threshold and the ranges of the middle 80 % of the rounds do
not overlap. Exit status: 1 if anything became slower, 0 if not, 2 if the files cannot be compared.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rdk_cuda.cli.arguments import positive
from rdk_cuda.recipes.errors import InputError

from ..commands import Parser, busy, run_command
from ..results import Row, comparable, latest, place, read
from ..tables import figure, table

SLOWER, FASTER, SAME, FEW = "slower", "faster", "", "too few rounds"
LARGEST_CHANCE = 0.02  # of a row whose ranges part though nothing changed; 7 rounds each: 0.015
TITLES = ("case", "device", "", "old us", "p10 .. p90", "new us", "p10 .. p90", "new / old")


class Comparison(NamedTuple):
    """Two rows of the same case, device and threads."""

    old: Row
    new: Row
    threshold: float

    @property
    def ratio(self) -> float:
        """New time over old."""
        ratio: float = self.new["median_us"] / self.old["median_us"]
        return ratio

    @property
    def chance(self) -> float:
        """Bound on the probability that either range lies above the other by chance."""
        old, new = self.old["rounds"], self.new["rounds"]
        return chance_of_a_gap(old, new) + chance_of_a_gap(new, old)

    @property
    def verdict(self) -> str:
        """Slower, faster, the same, or too few rounds to tell."""
        if self.new["p10_us"] <= self.old["p90_us"] and self.old["p10_us"] <= self.new["p90_us"]:
            return SAME
        if max(self.ratio, 1 / self.ratio) <= 1 + self.threshold:
            return SAME
        if self.chance > 2 * LARGEST_CHANCE:
            return FEW
        return SLOWER if self.ratio > 1 else FASTER


def chance_of_a_gap(below: int, above: int) -> float:
    """Bound on the probability that the p10 of `above` rounds exceeds the p90 of `below` others.

    All of them drawn independently from one distribution, of whatever form. Quantiles are
    interpolated, so a gap needs the upper neighbour of one to exceed the lower neighbour of the
    other, and how often that happens is a matter of counting orders.
    """
    if min(below, above) < 2:
        return 1.0
    upper = math.floor(0.1 * (above - 1)) + 2  # counted from 1, in ascending order
    lower = math.floor(0.9 * (below - 1)) + 1
    orders = sum(
        math.comb(before + upper - 1, upper - 1)
        * math.comb(below - before + above - upper, above - upper)
        for before in range(lower, below + 1)
    )
    return orders / math.comb(below + above, above)


def compared(old: Sequence[Row], new: Sequence[Row], threshold: float) -> list[Comparison]:
    """All pairs of comparable rows, the largest slowdown first."""
    partners = {comparable(row): row for row in latest(old)}
    pairs = [
        Comparison(partners[comparable(row)], row, threshold)
        for row in latest(new)
        if comparable(row) in partners
    ]
    return sorted(pairs, key=lambda pair: -pair.ratio)


def report(old: Sequence[Row], new: Sequence[Row], threshold: float) -> str:
    """The table, what it leaves out, and how far to trust it."""
    pairs = compared(old, new, threshold)
    verdicts = [pair.verdict for pair in pairs]
    lines = [
        *(f"{name}: {origins(rows)}" for name, rows in (("old", old), ("new", new))),
        "",
        table(TITLES, map(cells, pairs), "lllr"),
        "",
        f"{len(pairs)} compared: {verdicts.count(SLOWER)} slower, {verdicts.count(FASTER)} faster, "
        f"{verdicts.count(SAME)} unchanged within {threshold:.0%} or their own spread.",
    ]
    if few := verdicts.count(FEW):
        lines.append(f"{few} moved, but have too few rounds to tell; measure for longer.")
    judged = [pair.chance for pair in pairs if pair.chance <= 2 * LARGEST_CHANCE]
    lines.append(
        f"Were nothing changed but by the spread of rounds, at most {sum(judged):.2g} of these "
        "would be flagged, on average."
    )
    lines += busy(row for pair in pairs for row in (pair.old, pair.new))
    for name, rows, others in (("old", old, new), ("new", new, old)):
        there = {comparable(row) for row in others}
        lines += [
            f"Only in the {name} file: {row['case']} ({place(row)})"
            for row in latest(rows)
            if comparable(row) not in there
        ]
    return "\n".join(lines)


def origins(rows: Sequence[Row]) -> str:
    """The commits and versions of torch that rows were measured at."""
    return "; ".join(
        dict.fromkeys(
            f"commit {(row['commit'] or 'unknown')[:7]}{' with changes' if row['dirty'] else ''}, "
            f"torch {row['torch']}, {row['run']}"
            for row in rows
        )
    )


def cells(pair: Comparison) -> list[str]:
    """In the order of `TITLES`."""
    times = []
    for row in (pair.old, pair.new):
        times += [figure(row["median_us"]), f"{figure(row['p10_us'])} .. {figure(row['p90_us'])}"]
    return [pair.new["case"], place(pair.new), pair.verdict, *times, f"{pair.ratio:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.bench.regression", description=__doc__)
    add = command.add_argument
    add("old", type=Path, metavar="OLD", help="result file of profiling.bench")
    add("new", type=Path, metavar="NEW", help="another one")
    by = "by which a median may move, 0.1 for 10 percent (%(default)s)"
    add("--threshold", type=positive, default=0.1, metavar="SHARE", help=by)
    return run_command(command, run, arguments)


def run(options: argparse.Namespace) -> int:
    """Read, compare, print."""
    old, new = (read(file) for file in (options.old, options.new))
    pairs = compared(old, new, options.threshold)
    if not pairs:
        raise InputError(
            f"{options.old} and {options.new} have no row in common; needs the same case, device "
            "and threads in both"
        )
    print(report(old, new, options.threshold))
    return int(any(pair.verdict == SLOWER for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
