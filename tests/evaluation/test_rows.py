"""An evaluation's rows survive their files, and its pictures are drawn whatever is missing."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from rdk_cuda.recipes.report.rows import FIELDS, Interval, Row, evaluation_row, write_evaluation
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
    with pytest.raises(ValueError, match="'speedup'; needs one of temperature, keep"):
        evaluation_row(Interval(0.5, 0.4, 0.6), None, speedup=1.0)
    with pytest.raises(ValueError, match="speedup"):
        write_evaluation([{"speedup": 1.0}], {}, tmp_path / "evaluation.json")
    assert not list(tmp_path.iterdir())
