"""Studies of growth and of calibration at scale, here at small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.studies import calibration_scale as scale
from profiling.studies import first_order_growth as growth

pytestmark = pytest.mark.usefixtures("one_thread")


def test_first_order_grows_linearly_and_the_dense_matrix_quadratically() -> None:
    sizes = {growth.FIRST_ORDER: (4096, 8192, 16384, 32768), growth.DENSE: (1024, 1536, 2048, 3072)}
    fitted = growth.exponents(growth.measure(sizes, rounds=9))
    assert fitted[growth.FIRST_ORDER] < 1.3
    assert fitted[growth.DENSE] > 1.6
    content = json.loads((growth.RESULTS / "results.json").read_text())
    assert content["exponents"] == pytest.approx(growth.exponents(content["rows"]))


def test_growth_is_printed_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    small = {growth.FIRST_ORDER: (64, 128, 256, 512), growth.DENSE: (64, 96, 128, 192)}
    monkeypatch.setattr(growth, "SIZES", small)
    assert growth.main(["--output", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.png", "results.json"]
    content = json.loads((tmp_path / "results.json").read_text())
    measured = [(row["form"], row["size"]) for row in content["rows"]]
    assert sorted(measured) == sorted((form, n) for form, sizes in small.items() for n in sizes)
    printed = capsys.readouterr().out
    assert all(f"V^{exponent:.2f}" in printed for exponent in content["exponents"].values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_stage_of_calibration_is_timed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "scale.json"
    sizes = [
        "--tokens=512",
        "--width=16",
        "--virtual=4",
        "--states=64",
        "--samples=48",
        "--recorded=64",
    ]
    assert scale.main([*sizes, "--dtype", dtype, "--output", str(path)]) == 0
    content = json.loads(path.read_text())
    stages = [row["stage"] for row in content["rows"]]
    assert stages[-4:] == ["clusters", "virtual rows", "offsets", "affinity"]
    assert (content["tokens"], content["dtype"]) == (512, dtype)
    peaks = [row["peak_bytes"] for row in content["rows"]]
    assert peaks[0] > 1e7
    assert peaks == sorted(peaks)
    printed = capsys.readouterr().out
    assert all(f"| {stage} |" in printed for stage in stages)
