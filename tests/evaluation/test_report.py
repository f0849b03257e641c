"""An evaluation's rows survive their files, its table explains itself, its pictures are drawn."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rdk_cuda.recipes.report import plots
from rdk_cuda.recipes.report.rows import FIELDS, Interval, Row, evaluation_row, write_evaluation
from rdk_cuda.recipes.report.table import ABOVE_FULL, show_notes, show_rows
from rdk_cuda.recipes.report.written import write_figure
from rdk_cuda.recipes.stages import pruning as names


def row(method: str, keep: float, share: float | None = None, **others: float | str) -> Row:
    recovered = None if share is None else Interval(share, share - 0.1, share + 0.1)
    where = {"temperature": 1.0, "virtual_rows": 0, **others}
    value = 0.5 + 0.1 * (share or 0)
    return evaluation_row(
        Interval(value, value - 0.02, value + 0.02), recovered, method=method, keep=keep, **where
    )


def rows() -> list[Row]:
    return [
        row(names.FULL, 1.0, head_rows=400, speed_up=1.25),
        row(names.PRUNED, 0.25, tuned='48 of 64, "refined"'),
        row(names.RECOMMENDED, 0.25, 0.9, head_rows=164, virtual_rows=64, dynamic_columns=57.5),
    ]


def test_rows_survive_json_and_csv_has_the_same(tmp_path: Path) -> None:
    table = write_evaluation(rows(), {"positions": 5376}, tmp_path / "evaluation.json")
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["rows"] == rows()
    assert content["positions"] == 5376
    with table.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [tuple(each) for each in read] == [FIELDS] * 3
    for written, found in zip(rows(), read, strict=True):
        assert found == {k: "" if v is None else str(v) for k, v in written.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.csv", "evaluation.json"]


def test_what_is_no_number_is_null_and_empty(tmp_path: Path) -> None:
    unknown = evaluation_row(Interval(0.5, math.nan, math.nan), None, speed_up=math.inf)
    table = write_evaluation([unknown], {"share": math.nan}, tmp_path / "evaluation.json")
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["share"] is None
    assert {name: v for name, v in content["rows"][0].items() if v is not None} == {
        "acceptance": 0.5
    }
    assert table.read_text().splitlines()[1].replace(",", "") == "0.5"


def test_a_name_that_is_no_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speedup"):
        write_evaluation([{"speedup": 1.0}], {}, tmp_path / "evaluation.json")
    assert not list(tmp_path.iterdir())


FACTS = {
    "accepted_length": 1.5,
    "head_bytes": 10**9,
    "head_rows": 262144,
    "dynamic_columns": 12.0,
    "positions": 5376,
    "windows": 14,
}


def shared(share: float, documents: int = 14, **others: Any) -> list[Row]:
    facts = {**FACTS, "documents": documents}
    recommended = {**row(names.RECOMMENDED, 0.25, share, **facts), **others}
    return [row(names.FULL, 1.0, **facts), row(names.PRUNED, 0.25, **facts), recommended]


def lines_of(rows: list[Row]) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=80)
    show_rows(console, rows)
    show_notes(console, rows)
    return file.getvalue().splitlines()


def printed(rows: list[Row]) -> str:
    return " ".join(" ".join(lines_of(rows)).split())


def test_a_share_above_the_full_drafter_or_without_an_interval_has_its_reason() -> None:
    assert ABOVE_FULL in printed(shared(1.05))
    assert ABOVE_FULL not in printed(shared(0.95))
    bare = shared(0.5, recovered_low=math.nan, recovered_high=math.nan)
    reason = "some of the documents lose nothing to pruning"
    assert reason in printed(bare)
    assert reason not in printed(shared(0.5))
    assert "pruning alone loses nothing" in printed(shared(0.5, recovered=None))
    text = "Measured at 5376 positions, in 14 windows of 14 documents."
    assert text in printed(shared(0.5))
    assert "of 1 document." in printed(shared(0.5, documents=1))


def test_the_table_fits_80_columns_whatever_its_figures() -> None:
    wide = shared(-1.52, speed_up=0.95, speed_up_low=0.91, speed_up_high=4.25)
    wide[2] |= {"recovered_low": -2.03, "recovered_high": -1.01}
    assert max(map(len, lines_of(wide))) <= 80
    text = printed(wide)
    assert "…" not in text
    for figure in ("[-203, -101]", "[0.91, 4.25]", "262144+12", "[0.480, 0.520]"):
        assert figure in text


ONE_PRUNING = [row(names.FULL, 1.0), row(names.PRUNED, 0.25), row(names.VIRTUAL, 0.25, 0.9)]
NO_SHARES = [row(names.FULL, 1.0), row(names.PRUNED, 1.0), row(names.VIRTUAL, 1.0)]
NO_INTERVALS = [{**each, "acceptance_low": None, "recovered_high": None} for each in ONE_PRUNING]
SEVERAL = [
    row(method, keep, share, temperature=temperature, virtual_rows=rows)
    for method, share in (("first-order RDK", -9.0), (names.VIRTUAL, 0.8), ("another", 0.2))
    for keep in (0.5, 0.25, 0.125, 0.01)
    for temperature in (0.0, 0.7, 1.0)
    for rows in (0, 16)
]


@pytest.mark.parametrize(
    "rows", [ONE_PRUNING, NO_SHARES, NO_INTERVALS, SEVERAL], ids=["one", "none", "bare", "several"]
)
def test_pictures_are_written(rows: list[Row], tmp_path: Path) -> None:
    figure = plots.acceptance_figure(rows, "Title")
    write_figure(figure, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ("interval" in figure.get_suptitle()) == (rows is not NO_INTERVALS)
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_every_method_has_a_style_of_its_own() -> None:
    assert set(plots.STYLES) == set(names.BUILDERS)
    assert len(set(plots.STYLES.values())) == len(plots.STYLES)
