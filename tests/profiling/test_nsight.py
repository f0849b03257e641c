"""Programs to profile run, and say what is missing where there is no profiler or no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from profiling.machine import ROOT
from profiling.nsight import decoding_run, one_launch, torch_profile
from profiling.nsight.decoding_run import DecodingRun
from rdk_cuda import ranges

OPTIONS = Namespace(device="cpu", batch=2, threads=None, tokens=6, draft_length=2, keep=0.25)


@pytest.fixture(scope="module")
def run() -> DecodingRun:
    return decoding_run.prepare(OPTIONS)


@pytest.mark.night
def test_torch_profile_shows_where_a_step_goes(
    run: DecodingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_run, "prepare", lambda options: run)
    assert torch_profile.main(["--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    table = (tmp_path / "timeline.txt").read_text()
    # torch.profiler has no marks, and the decoder redistributes nothing in full.
    for name in set(ranges.LEGEND) - {"accepted", "redistribute"}:
        assert f" rdk: {name} " in table
    assert " rdk::verify " in table


def test_launches_can_be_rehearsed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_launch.main(["--device", "cpu", "--preset", "tiny"]) == 0
    operators = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert operators == ["draft", "verify", "verify", "redistribute", "gather_logits"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("program", [one_launch, decoding_run, torch_profile])
def test_without_a_gpu_they_say_so_in_one_line(
    program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--device", "cuda"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sees no GPU" in line


def run_script(
    tool: str, path: Path, *arguments: str, programs: dict[str, str], python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """With nothing on the PATH but a shell and these programs, by name and body."""
    for needed in ("bash", "dirname", "env", "mkdir", "sed", "tee"):
        (path / needed).symlink_to(f"/usr/bin/{needed}")
    for name, body in programs.items():
        (path / name).write_text(f"#!/bin/bash\n{body}\n")
        (path / name).chmod(0o755)
    environment = {**os.environ, "PATH": str(path), "PYTHON": python}
    command = [str(ROOT / "profiling/nsight" / f"{tool}.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


TOOLS = pytest.mark.parametrize("tool", ["nsys", "ncu"])


@TOOLS
@pytest.mark.parametrize("there", [True, False])
def test_a_missing_profiler_or_gpu_is_named(tmp_path: Path, tool: str, there: bool) -> None:
    programs = {tool: "echo started", "python": "exit 1"} if there else {}  # torch sees no GPU
    done = run_script(tool, tmp_path, programs=programs, python=str(tmp_path / "python"))
    missing = "torch sees no GPU" if there else f"{tool} is not on the PATH. It comes with"
    assert (done.returncode, done.stdout) == (2, "")
    assert missing in done.stderr
