"""Rows of the benchmark, and what is drawn and said of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from profiling.bench import __main__ as bench
from profiling.bench import growth, truncation
from profiling.bench.cases import OVERLAP, PAIR
from profiling.results import NEEDED

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = ("--device", "cpu", "--preset", "tiny", "--repeats", "3")


def measured(tmp_path: Path, *options: str, code: int = 0) -> list[dict]:
    output = tmp_path / "rows.json"
    assert bench.main([*TINY, *options, "--output", str(output)]) == code
    rows: list[dict] = json.loads(output.read_text())["rows"]
    return rows


def test_rows_have_every_field_and_figures_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = measured(tmp_path)
    operators = [row["operator"] for row in rows]
    assert operators == [
        *("draft", "verify", "verify", PAIR, PAIR, "redistribute", "gather_logits", OVERLAP)
    ]
    for row in rows:
        assert set(NEEDED) < set(row) == set(rows[0])
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert row["rounds"] == 3
        assert row["floor_us"] == pytest.approx(row["bytes"] / row["bandwidth_gb_s"] / 1e3)
        assert row["bytes_visited"] <= row["bytes_all"]
        assert (row["device"], row["threads"], row["torch"]) == ("cpu", 1, torch.__version__)
        assert row["peers"]["eager"]["ratio"] > 0
        assert "--peers compiled" in row["peers"]["compiled"]["skipped"]
        assert (row["bandwidth"] == "copy") == (row["operator"] == "redistribute")
    low, high = (row for row in rows if row["operator"] == "verify")
    assert low["accepted_mean"] < high["accepted_mean"]
    assert low["bytes_visited"] < high["bytes_visited"]
    *others, gradient = rows
    assert gradient["peak_mb"] < gradient["peers"]["eager"]["peak_mb"]
    assert {row["peak_mb"] for row in others} == {None}
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 + len(rows)
    table = captured.out.splitlines()[-len(rows) :]
    assert [line.split()[1] for line in table] == operators


def test_growth_is_fitted_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    sizes = {"target_size": (200, 300, 400, 600), "draft_size": (80, 100, 120, 160)}
    sizes |= {"batch": (1, 2, 3, 4), "draft_length": (1, 2, 3, 4)}
    monkeypatch.setattr(growth, "SIZES", sizes)
    rows = measured(tmp_path, "--preset", "growth", "--operators", "verify", "--seconds", "0.001")
    axes = [("verify", axis) for axis in sizes]
    assert [(fit["operator"], fit["axis"]) for fit in rows] == axes
    assert "Growth: time ~ size ^ exponent" in capsys.readouterr().out
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.ci
def test_truncation_is_timed_next_to_rows_without_it_and_to_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "statistics.npz"
    probs = np.full(300, 1 / 300, dtype=np.float32)
    np.savez(file, mean_prob=probs, var_prob=probs**2)
    monkeypatch.setattr(truncation, "BATCHES", (8,))
    options = ("--dtype", "float32", "--seconds", "0.001", "--statistics", str(file))
    rows = measured(tmp_path, "--preset", "truncation", *options)
    assert len(rows) == len(truncation.SHAPES) * (2 * len(truncation.LIMITS) - 1) + 3
    assert [row["operator"] for row in rows[-3:]] == ["Generate"] * 3
    for row in rows[:-3]:
        assert row["times_untruncated"] > 0
        assert ("transformers" in row["peers"]) == (row["operator"] == "verify")
        assert 0 < row["kept_mean"] <= 300
    assert all(row["peers"]["transformers"]["ratio"] > 0 for row in rows[-3:])
    kept = {row["limits"]: row["kept_mean"] for row in rows if row["shape"] == "like a model's"}
    assert kept["top-k 50"] == 50
    assert kept["top-k 50, top-p 0.9"] < 50
    assert "| verify | flat, float32 | 8 | mask of half |" in capsys.readouterr().out


@pytest.mark.ci
def test_a_step_on_the_host_is_timed_beside_its_floor(tmp_path: Path) -> None:
    output = tmp_path / "host.json"
    options = ("--device", "cpu", "--preset", "host", "--repeats", "3", "--seconds", "0.01")
    assert bench.main([*options, "--output", str(output)]) == 0
    rows = {row["call"]: row for row in json.loads(output.read_text())["rows"]}
    assert all(
        row["ratio"] * row["floor_us"] == pytest.approx(row["median_us"]) for row in rows.values()
    )
    assert rows["a step by torch.ops"]["dispatched"] == 7
    assert rows["a step by rdk_cuda, rows given"]["dispatched"] == 6
