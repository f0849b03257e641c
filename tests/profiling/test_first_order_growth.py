"""First-order RDK costs O(N), the dense matrix O(N^2) (arXiv:2506.03206)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.studies import first_order_growth as growth

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {growth.FIRST_ORDER: (64, 128, 256, 512), growth.DENSE: (64, 96, 128, 192)}


def test_first_order_grows_linearly_and_the_dense_matrix_quadratically() -> None:
    sizes = {growth.FIRST_ORDER: (4096, 8192, 16384, 32768), growth.DENSE: (1024, 1536, 2048, 3072)}
    fitted = growth.exponents(growth.measure(sizes, rounds=9))
    assert fitted[growth.FIRST_ORDER] < 1.3
    assert fitted[growth.DENSE] > 1.6


def test_table_and_picture_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(growth, "SIZES", SMALL)
    assert growth.main(["--output", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.png", "results.json"]
    content = json.loads((tmp_path / "results.json").read_text())
    measured = [(row["form"], row["size"]) for row in content["rows"]]
    assert sorted(measured) == sorted((form, n) for form, sizes in SMALL.items() for n in sizes)
    printed = capsys.readouterr()
    assert all(f"V^{exponent:.2f}" in printed.out for exponent in content["exponents"].values())
    assert printed.err.count("V = ") == len({*SMALL[growth.FIRST_ORDER], *SMALL[growth.DENSE]})


def test_the_exponents_of_the_committed_run_are_those_of_its_rows() -> None:
    content = json.loads((growth.RESULTS / "results.json").read_text())
    assert content["exponents"] == pytest.approx(growth.exponents(content["rows"]))
