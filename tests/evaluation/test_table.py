"""What an evaluation prints below its table says what the figures stand on."""

from __future__ import annotations

import io
import math
from typing import Any

from rich.console import Console

from rdk_cuda.recipes.report.rows import Row
from rdk_cuda.recipes.report.table import ABOVE_FULL, show_notes, show_rows
from rdk_cuda.recipes.stages import pruning as names

from .test_rows import row

FACTS = {
    "accepted_length": 1.5,
    "head_bytes": 10**9,
    "head_rows": 262144,
    "dynamic_columns": 12.0,
    "positions": 5376,
    "windows": 14,
}


def rows(share: float, documents: int = 14, **others: Any) -> list[Row]:
    facts = {**FACTS, "documents": documents}
    recommended = {**row(names.RECOMMENDED, 0.25, share, **facts), **others}
    return [row(names.FULL, 1.0, **facts), row(names.PRUNED, 0.25, **facts), recommended]


def printed(rows: list[Row]) -> str:
    file = io.StringIO()
    console = Console(file=file, width=80)
    show_rows(console, rows)
    show_notes(console, rows)
    return file.getvalue()


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_share_above_the_full_drafter_is_explained_where_it_is_printed() -> None:
    assert ABOVE_FULL in one_line(printed(rows(1.05)))
    assert ABOVE_FULL not in one_line(printed(rows(0.95)))


def test_a_share_without_an_interval_has_its_reason() -> None:
    bare = rows(0.5, recovered_low=math.nan, recovered_high=math.nan)
    reason = "some of the documents lose nothing to pruning"
    assert reason in one_line(printed(bare))
    assert reason not in one_line(printed(rows(0.5)))
    assert "pruning alone loses nothing" in one_line(printed(rows(0.5, recovered=None)))


def test_how_much_was_measured_is_named() -> None:
    text = one_line(printed(rows(0.5)))
    assert "Measured at 5376 positions, in 14 windows of 14 documents." in text
    assert "of 1 document." in one_line(printed(rows(0.5, documents=1)))


def test_the_table_fits_80_columns_whatever_its_figures() -> None:
    wide = rows(-1.52, speed_up=0.95, speed_up_low=0.91, speed_up_high=4.25)
    wide[2] |= {"recovered_low": -2.03, "recovered_high": -1.01}
    text = printed(wide)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for figure in ("[-203, -101]", "[0.91, 4.25]", "262144+12", "[0.480, 0.520]"):
        assert figure in text
