"""The calibration of virtual tokens at scale, here at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.studies import calibration_scale as scale

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = [
    "--tokens=512",
    "--width=16",
    "--virtual=4",
    "--states=64",
    "--samples=48",
    "--recorded=64",
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_stage_is_timed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "scale.json"
    assert scale.main([*SMALL, "--dtype", dtype, "--output", str(path)]) == 0
    content = json.loads(path.read_text())
    stages = [row["stage"] for row in content["rows"]]
    assert stages[-4:] == ["clusters", "virtual rows", "offsets", "affinity"]
    assert (content["tokens"], content["dtype"]) == (512, dtype)
    peaks = [row["peak_bytes"] for row in content["rows"]]
    assert peaks == sorted(peaks)
    assert peaks[0] > 1e7
    printed = capsys.readouterr()
    assert all(f"{stage} ..." in printed.err for stage in stages)
    assert all(stage in printed.out for stage in (*stages, "all", "peak GB"))
