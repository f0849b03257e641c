"""Result files: whole or not at all, and without NaN."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdk_cuda.whole_file import write_whole

__all__ = ["without_nan", "write_csv", "write_figure", "write_json", "write_whole"]


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain data; what is no number becomes null, since JSON has no NaN."""
    text = json.dumps(without_nan(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, lambda beside: beside.write_text(text + "\n", encoding="utf-8"))


def write_csv(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], path: Path) -> None:
    """Write a line for each row; None and what is no number become empty.

    Raises:
        ValueError: a row has a field that is not among `fields`.
    """

    def write(beside: Path) -> None:
        with beside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n")
            writer.writeheader()
            writer.writerows(without_nan(rows))

    write_whole(path, write)


def write_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG."""
    write_whole(path, lambda beside: figure.savefig(beside, dpi=150, format="png"))


def without_nan(value: Any) -> Any:
    """The same content with None in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
