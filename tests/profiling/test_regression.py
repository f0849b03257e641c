"""A real change is flagged, noise is not, and what cannot be compared is said."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.bench.measure import in_microseconds
from profiling.bench.regression import FASTER, SAME, SLOWER, Comparison, chance_of_a_gap, main

NAME = "verify virtual Vt=1000 Vd=100 B=8 K=4 float32 high"


def made_row(case: str = "draft virtual Vt=1000 Vd=100 B=8 float32", **values: Any) -> dict:
    """What regression reads of a row of a processor."""
    about = {
        "case": case,
        "dtype": "float32",
        "device": "cpu",
        "device_name": "a processor",
        "threads": 2,
        "load": 1.0,
        "torch": "2.13.0",
        "commit": "0123456789abcdef",
        "dirty": False,
        "run": "2026-01-02T03:04:05Z",
        "date": "2026-01-02T03:04:06Z",
        "median_us": 100.0,
        "p10_us": 95.0,
        "p90_us": 105.0,
        "rounds": 20,
    }
    return {**about, **values}


def timed(case: str, microseconds: Sequence[float], **values: Any) -> dict:
    """A row with the figures of these rounds."""
    figures = in_microseconds([time / 1e6 for time in microseconds])
    return made_row(case, **figures, rounds=len(microseconds), **values)


def write_rows(path: Path, rows: Sequence[dict]) -> Path:
    content = {"format": "rdk_cuda.bench", "format_version": 1, "rows": rows}
    path.write_text(json.dumps(content))
    return path


def rounds(source: random.Random, count: int, median: float = 100, spread: float = 0.2) -> list:
    """Skewed, as times are."""
    return [median * source.lognormvariate(0, spread) for _ in range(count)]


def verdict(old: dict, new: dict, threshold: float = 0.1) -> str:
    return Comparison(old, new, threshold).verdict


@pytest.mark.parametrize(("old", "new"), [(7, 7), (7, 20), (20, 7), (200, 200)])
def test_noise_is_flagged_less_often_than_promised(old: int, new: int) -> None:
    # Seed 0. A right comparison of 2,000 pairs exceeds 1.5 times its bound and 8 with a
    # probability below 1e-3 (Poisson, mean at most 58).
    source, pairs = random.Random(0), 2000
    flagged = sum(
        verdict(timed(NAME, rounds(source, old)), timed(NAME, rounds(source, new))) != SAME
        for _ in range(pairs)
    )
    bound = chance_of_a_gap(old, new) + chance_of_a_gap(new, old)
    assert flagged <= 1.5 * bound * pairs + 8


def test_medians_alone_would_flag_noise() -> None:
    # The control: without the ranges, most pairs of 7 noisy rounds look changed.
    source, pairs = random.Random(0), 300
    medians = [[sorted(rounds(source, 7))[3] for _ in ("old", "new")] for _ in range(pairs)]
    assert sum(not 1 / 1.1 < new / old < 1.1 for old, new in medians) > 0.2 * pairs


def test_a_change_beyond_the_threshold_and_the_spread_is_flagged() -> None:
    old, new = timed(NAME, [100.0] * 20), timed(NAME, [109.0] * 20)
    assert verdict(old, new) == SAME
    assert verdict(old, new, threshold=0.05) == SLOWER
    old = made_row(median_us=100.0, p10_us=80.0, p90_us=140.0)
    new = made_row(median_us=150.0, p10_us=130.0, p90_us=170.0)
    assert verdict(old, new) == SAME  # their ranges overlap
    assert verdict(old, {**new, "p10_us": 141.0}) == SLOWER
    source = random.Random(1)  # rounds spread by 5 %: among 200 pairs, none is overlooked
    for _ in range(200):
        before = timed(NAME, rounds(source, 20, spread=0.05))
        after = timed(NAME, rounds(source, 20, median=150, spread=0.05))
        assert (verdict(before, after), verdict(after, before)) == (SLOWER, FASTER)


def test_the_exit_status_says_whether_anything_became_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = [timed("draft", [100.0] * 20)], [timed("draft", [160.0] * 20, load=9.0)]
    old, new = write_rows(tmp_path / "old.json", fast), write_rows(tmp_path / "new.json", slow)
    assert main([str(old), str(new)]) == 1
    printed = capsys.readouterr().out
    assert "| slower | 100 | 100 .. 100 | 160 | 160 .. 160 | 1.60 |" in printed
    assert "1 slower, 0 faster" in printed
    assert "Others were at work on this machine (load 9.0)" in printed
    assert main([str(new), str(old)]) == 0
    assert main([str(old), str(new), "--threshold", "0.7"]) == 0
