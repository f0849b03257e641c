"""`python -m profiling.bench.roofline FILE...`: how close to the memory's bandwidth we are.

Of rows that `profiling.bench` measured: bytes by formula (traffic.py), the time that they take at
the bandwidth measured in the same run (the floor), the time taken, the share reached. A table, and
a picture of time against bytes in which the floor is a line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdk_cuda.cli.errors import InputError
from rdk_cuda.files import write_figure

from ..commands import Parser, run_command
from ..results import Row, latest, read
from ..tables import figure, table
from .growth import COLOURS

MARKERS = {"float32": "o", "bfloat16": "s"}
SHARES = (1.0, 0.5, 0.25)  # of the bandwidth, each a line
TITLES = (
    *("operator", "case", "bandwidth", "GB/s", "MB", "floor us"),
    *("median us", "GB/s reached", "share"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.bench.roofline", description=__doc__)
    add = command.add_argument
    add("files", type=Path, nargs="+", metavar="FILE", help="result files of profiling.bench")
    add("--output", type=Path, metavar="PNG", help="the picture (roofline.png next to the first)")
    return run_command(command, run, arguments)


def run(options: argparse.Namespace) -> None:
    """Read, print, draw."""
    rows = latest(row for file in options.files for row in read(file)["rows"])
    if not rows:
        raise InputError(f"{options.files[0]}: has no rows; run profiling.bench")
    print(report(rows))
    if find_spec("matplotlib") is None:
        print("No picture: matplotlib is not installed.", file=sys.stderr)
        return
    picture = options.output or options.files[0].with_name("roofline.png")
    try:
        write_figure(figure_of(rows), picture)
    except OSError as error:
        raise InputError(f"{picture}: {error.strerror}; needs a file to write to") from None
    print(f"\nwritten to {picture}")


def report(rows: Sequence[Row]) -> str:
    """A table for each device, operators in the order in which they were measured."""
    return "\n\n".join(
        f"{place}\n\n{table(TITLES, map(row_cells, here), 'lllr')}"
        for place, here in by_place(rows).items()
    )


def row_cells(row: Row) -> tuple[str, ...]:
    """In the order of `TITLES`."""
    return (
        row["operator"],
        row["case"].removeprefix(row["operator"]).strip(),
        row["bandwidth"],
        figure(row["bandwidth_gb_s"]),
        figure(row["bytes"] / 1e6),
        figure(row["floor_us"]),
        figure(row["median_us"]),
        figure(row["bytes"] / row["median_us"] / 1e3),
        f"{row['share_of_floor']:.0%}",
    )


def by_place(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each device, and on a CPU of each number of threads."""
    places: dict[str, list[Row]] = {}
    for row in rows:
        threads = f", {row['threads']} threads" if row["device"] == "cpu" else ""
        places.setdefault(f"{row['device_name']}{threads}", []).append(row)
    return places


def figure_of(rows: Sequence[Row]) -> Any:
    """Time against bytes, a panel for each device, as a matplotlib figure."""
    from matplotlib.figure import Figure

    places = by_place(rows)
    drawing = Figure(figsize=(max(7.5, 5.5 * len(places)), 5.4), layout="constrained")
    panels = drawing.subplots(1, len(places), squeeze=False)[0]
    for panel, (place, here) in zip(panels, places.items(), strict=True):
        draw_place(panel, here)
        panel.set_title(place, fontsize=10)
    panels[0].set_ylabel("median time, microseconds")
    return drawing


def draw_place(panel: Any, rows: Sequence[Row]) -> None:
    """A panel: points by operator and dtype above the line of the fastest bandwidth."""
    panel.set(xscale="log", yscale="log", xlabel="bytes that must move")
    fastest = max(row["bandwidth_gb_s"] for row in rows)
    ends = [min(row["bytes"] for row in rows) / 1.5, max(row["bytes"] for row in rows) * 1.5]
    for share in SHARES:
        times = [end / (share * fastest * 1e3) for end in ends]
        whole = share == 1
        panel.plot(ends, times, color="#000000", lw=1.4 if whole else 0.7, ls="-" if whole else ":")
        words = f"{fastest:,.0f} GB/s" if whole else f"{share:.0%}"
        panel.annotate(
            words, (ends[1], times[1]), xytext=(3, 0), textcoords="offset points", fontsize=8
        )
    for (operator, dtype), here in by_operator(rows).items():
        colour = COLOURS[operator]
        panel.plot(
            [row["bytes"] for row in here],
            [row["median_us"] for row in here],
            MARKERS[dtype],
            ms=7,
            color=colour,
            mfc="none" if dtype == "bfloat16" else colour,
            label=f"{operator}, {dtype}",
        )
    panel.grid(alpha=0.3, which="major")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(loc="best", fontsize=8)


def by_operator(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each operator and dtype."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["operator"], row["dtype"]), []).append(row)
    return groups


if __name__ == "__main__":
    sys.exit(main())
