"""Pictures of an evaluation are drawn whatever is missing, with every method where it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rdk_cuda.files import write_figure
from rdk_cuda.recipes.report import plots
from rdk_cuda.recipes.report.rows import Row
from rdk_cuda.recipes.stages import pruning as names

from .test_rows import row


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


ONE_PRUNING = [row(names.FULL, 1.0), row(names.PRUNED, 0.25), row(names.VIRTUAL, 0.25, 0.9)]
NO_SHARES = [row(names.FULL, 1.0), row(names.PRUNED, 1.0), row(names.VIRTUAL, 1.0)]
NO_INTERVALS = [{**each, "acceptance_low": None, "recovered_high": None} for each in ONE_PRUNING]
SEVERAL = [
    row(method, keep, share, temperature=temperature, virtual_rows=rows)
    for method, share in ((names.FIRST_ORDER, -9.0), (names.VIRTUAL, 0.8), ("another", 0.2))
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
    assert is_png(tmp_path / "plot.png")
    assert ("interval" in title(figure)) == (rows is not NO_INTERVALS)
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_every_method_has_a_style_of_its_own() -> None:
    assert set(plots.STYLES) == set(names.BUILDERS)
    assert len(set(plots.STYLES.values())) == len(plots.STYLES)


def title(figure: Any) -> str:
    return str(figure.get_suptitle())
