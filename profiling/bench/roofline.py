"""`python -m profiling.bench.roofline FILE...`: how close to the memory's bandwidth we are.

Draws rows that `profiling.bench` measured: the time taken against the bytes that must move
(traffic.py), above the line of the bandwidth that was measured in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rdk_cuda.cli.arguments import refuse_missing
from rdk_cuda.cli.errors import InputError
from rdk_cuda.files import write_figure

from ..commands import Parser, run_command
from ..results import Row, latest, place, read
from .growth import COLOURS

MARKERS = {"float32": "o", "bfloat16": "s"}
SHARES = (1.0, 0.5, 0.25)  # of the bandwidth, each a line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.bench.roofline", description=__doc__)
    add = command.add_argument
    add("files", type=Path, nargs="+", metavar="FILE", help="result files of profiling.bench")
    add("--output", type=Path, metavar="PNG", help="the picture (roofline.png next to the first)")
    return run_command(command, run, arguments)


def run(options: argparse.Namespace) -> None:
    """Read and draw."""
    refuse_missing(["matplotlib"])
    rows = latest(row for file in options.files for row in read(file))
    if not rows:
        raise InputError(f"{options.files[0]}: has no rows; run profiling.bench")
    picture = options.output or options.files[0].with_name("roofline.png")
    write_figure(figure_of(rows), picture)
    print(f"written to {picture}")


def figure_of(rows: Sequence[Row]) -> Any:
    """Time against bytes, a panel for each device and number of threads, as a matplotlib figure."""
    from matplotlib.figure import Figure

    places = {where: list(here) for where, here in groupby(sorted(rows, key=place), place)}
    drawing = Figure(figsize=(max(7.5, 5.5 * len(places)), 5.4), layout="constrained")
    panels = drawing.subplots(1, len(places), squeeze=False)[0]
    for panel, (where, here) in zip(panels, places.items(), strict=True):
        draw_place(panel, here)
        panel.set_title(where, fontsize=10)
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
    for operator, dtype in dict.fromkeys((row["operator"], row["dtype"]) for row in rows):
        here = [row for row in rows if (row["operator"], row["dtype"]) == (operator, dtype)]
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


if __name__ == "__main__":
    sys.exit(main())
