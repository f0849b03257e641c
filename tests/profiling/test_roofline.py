"""The share of the bandwidth that is reached, as table and as picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.bench.growth import COLOURS
from profiling.bench.roofline import figure_of, main, report

from .bench_rows import made_row, write_rows

GPU = {"device": "cuda", "device_name": "a GPU", "bandwidth": "copy", "bandwidth_gb_s": 3000.0}


def test_the_table_has_bytes_floor_time_and_share() -> None:
    text = report([made_row()])
    assert text.startswith("a processor, 2 threads\n")
    cells = text.splitlines()[-1].strip("| ").split(" | ")
    assert cells[0] == "draft"
    # 1 MB at 20 GB/s is 50 us; taken were 100, that is 10 GB/s.
    assert cells[-7:] == ["read", "20", "1", "50", "100", "10", "50%"]


def test_points_lie_above_the_line_by_the_share_they_miss() -> None:
    pytest.importorskip("matplotlib")
    (panel,) = figure_of([made_row()]).axes
    floor, *_, points = panel.get_lines()
    (size,), (time,) = points.get_data()
    xs, ys = floor.get_data()
    assert ys[0] / xs[0] == pytest.approx(0.5 * time / size)
    assert points.get_color() == COLOURS["draft"]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = write_rows(tmp_path / "rows.json", [made_row(), made_row("verify float32")])
    assert main([str(file)]) == 0
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert "roofline.png" in capsys.readouterr().out
    assert main([str(file), "--output", str(tmp_path / "other.png")]) == 0
    assert (tmp_path / "other.png").is_file()
