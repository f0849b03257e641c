"""The rows of an evaluation, as a table on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rdk_cuda.calibration.methods import RECOMMENDED

from .evaluation_files import Row

COLUMNS = (
    "method",
    "head\nrows",
    "accept-\nance",
    "% of the loss\nrecovered",
    "accepted\nlength",
    "head\nMB",
    "speed-up\npredicted",
)


def show_rows(console: Console, rows: Sequence[Row]) -> None:
    """A table for each temperature."""
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        for place, name in enumerate(COLUMNS):
            table.add_column(
                name, justify="right" if place else "left", no_wrap=True, vertical="bottom"
            )
        for row in rows:
            if row["temperature"] == temperature:
                style = "bold" if row["method"] == RECOMMENDED else ""
                table.add_row(*cells(row), style=style)
        title = "Greedy" if temperature == 0 else f"Temperature {temperature:g}"
        console.print(f"\n{title}, held-out text:", highlight=False)
        console.print(table)


def cells(row: Row) -> list[str]:
    """A row's figures, as short as they are readable."""
    columns = f"+{row['dynamic_columns']:.0f}" if row["dynamic_columns"] else ""
    speed_up = row["speed_up"]
    return [
        row["method"],
        f"{row['head_rows']}{columns}",
        f"{row['acceptance']:.3f}",
        percent_with_interval(row),
        f"{row['accepted_length']:.2f}",
        f"{row['head_bytes'] / 1e6:.2f}",
        "–" if speed_up is None else f"{speed_up:.2f}",
    ]


def percent_with_interval(row: Row) -> str:
    """For example `93 [88, 97]`."""
    if row["recovered"] is None:
        return "–"
    value, low, high = (100 * row[f"recovered{end}"] for end in ("", "_low", "_high"))
    return f"{value:.0f}" + ("" if math.isnan(low) else f" [{low:.0f}, {high:.0f}]")
