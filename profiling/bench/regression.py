"""`python -m profiling.bench.regression OLD NEW`: what became slower or faster.

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

from rdk_cuda.__main__ import INTERRUPTED, Parser
from rdk_cuda.commands.arguments import positive

from ..results import ResultError, Row, comparable, latest, read
from ..tables import figure
from .page import aligned

SLOWER, FASTER, SAME, FEW = "slower", "faster", "", "too few rounds"
LARGEST_CHANCE = 0.02  # of a row whose ranges part though nothing changed; 7 rounds each: 0.015
TITLES = ("case", "device", "old us", "p10 .. p90", "new us", "p10 .. p90", "new / old", "")


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
        """What became of it."""
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
    """Every pair of partners, the largest change for the worse first."""
    partners = {comparable(row): row for row in latest(old)}
    pairs = [
        Comparison(partners[comparable(row)], row, threshold)
        for row in latest(new)
        if comparable(row) in partners
    ]
    return sorted(pairs, key=lambda pair: -pair.ratio)


def without_partner(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Rows that have nothing to be compared with."""
    there = {comparable(row) for row in others}
    return [row for row in latest(rows) if comparable(row) not in there]


def report(old: Sequence[Row], new: Sequence[Row], threshold: float) -> str:
    """The table, what was left out, and how far to trust it."""
    pairs = compared(old, new, threshold)
    counts = {
        verdict: sum(pair.verdict == verdict for pair in pairs)
        for verdict in (SLOWER, FASTER, SAME, FEW)
    }
    lines = [
        *(f"{name}: {origins(rows)}" for name, rows in (("old", old), ("new", new))),
        "",
        aligned(TITLES, [cells(pair) for pair in pairs], {"case", "device", ""}),
        "",
        f"{len(pairs)} compared: {counts[SLOWER]} slower, {counts[FASTER]} faster, "
        f"{counts[SAME]} unchanged within {threshold:.0%} or their own spread.",
    ]
    if counts[FEW]:
        lines.append(f"{counts[FEW]} moved, but have too few rounds to tell; measure for longer.")
    judged = [pair.chance for pair in pairs if pair.chance <= 2 * LARGEST_CHANCE]
    lines.append(
        f"Were nothing changed but by the spread of rounds, at most {sum(judged):.2g} of these "
        "would be flagged, on average."
    )
    if busy := sum(is_busy(pair.old) or is_busy(pair.new) for pair in pairs):
        lines.append(f"Others were at work on the machine during {busy} of them: measure again.")
    for name, rows, others in (("old", old, new), ("new", new, old)):
        lines += [
            f"Only in the {name} file: {row['case']} ({place(row)})"
            for row in without_partner(rows, others)
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


def cells(pair: Comparison) -> tuple[str, ...]:
    """In the order of `TITLES`."""
    return (
        pair.new["case"],
        place(pair.new),
        *(text for row in (pair.old, pair.new) for text in (figure(row["median_us"]), span(row))),
        f"{pair.ratio:.2f}",
        pair.verdict,
    )


def span(row: Row) -> str:
    """The middle 80 % of the rounds."""
    return f"{figure(row['p10_us'])} .. {figure(row['p90_us'])}"


def place(row: Row) -> str:
    """Where it was measured."""
    threads = f", {row['threads']} threads" if row["device"] == "cpu" else ""
    return f"{row['device_name']}{threads}"


def is_busy(row: Row) -> bool:
    """Whether more wanted to run than the measurement's own threads."""
    busy: bool = row["load"] > row["threads"] + 1
    return busy


def parser() -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.bench.regression", description=__doc__)
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="result file of profiling.bench")
    add("new", type=Path, metavar="NEW", help="another one")
    add(
        "--threshold",
        type=positive,
        default=0.1,
        metavar="SHARE",
        help="by which a median may move, 0.1 for 10 percent (%(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        return run(options)
    except ResultError as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted: nothing was compared.", file=sys.stderr)
        return INTERRUPTED


def run(options: argparse.Namespace) -> int:
    """Read, compare, print."""
    old, new = (read(file)["rows"] for file in (options.old, options.new))
    pairs = compared(old, new, options.threshold)
    if not pairs:
        raise ResultError(
            f"{options.old} and {options.new} have no row in common; needs the same case, device "
            "and threads in both"
        )
    print(report(old, new, options.threshold))
    return int(any(pair.verdict == SLOWER for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
