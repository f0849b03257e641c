"""Tables and figures as files, written whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files import without_nan, write_whole


def write_csv(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], path: Path) -> None:
    """Write a line for each row; None and what is no number become empty."""

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n")
            writer.writeheader()
            writer.writerows(without_nan(rows))

    write_whole(path, write)


def write_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG."""
    write_whole(path, lambda place: figure.savefig(place, dpi=150, format="png"))
