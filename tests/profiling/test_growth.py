"""Exponents of growth, and their picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.bench.cases import PAIR, Case
from profiling.bench.growth import (
    SIZES,
    growth_cases,
    measure_growth,
    plot,
    summary,
)

OWN = {"run": "r", "device": "cpu", "device_name": "a processor", "threads": 2}
OWN |= {
    "multiprocessors": None,
    "torch": "2.13",
    "commit": None,
    "dirty": None,
    "dtype": "float32",
    "sampler": "virtual",
}


def row(case: Case) -> dict:
    """As if an operator took V_t sqrt(K) microseconds, on a floor that is linear in both."""
    time = case.target_size * case.draft_length**0.5
    return {**OWN, "median_us": time, "floor_us": case.target_size * case.draft_length}


def fits() -> list[dict]:
    cases = growth_cases(["verify"], "float32", "virtual", SIZES)
    return [measure_growth(operator, axis, along, row) for operator, axis, along in cases]


def test_exponents_of_exact_powers_are_found() -> None:
    found = {fit["axis"]: fit for fit in fits()}
    expected = {"target_size": 1, "draft_size": 0, "batch": 0, "draft_length": 0.5}
    expected |= {"entries": 0, "rank": 0}
    for axis, exponent in expected.items():
        assert found[axis]["exponent"] == pytest.approx(exponent)
        assert len(found[axis]["sizes"]) >= 4
    assert found["draft_length"]["exponent_of_floor"] == pytest.approx(1)
    assert "| verify | K | 1 .. 8 | 0.50 | 1.00 |" in summary(fits())


def test_only_one_size_changes_along_an_axis() -> None:
    for _, axis, cases in growth_cases(["draft", "verify", PAIR], "bfloat16", "virtual", SIZES):
        for name in (name for name in SIZES if name != axis):
            assert len({getattr(case, name) for case in cases}) == 1
        assert [getattr(case, axis) for case in cases] == list(SIZES[axis])


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot(fits(), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
