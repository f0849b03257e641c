"""Programs to profile run, and say what is missing where there is no profiler or no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from profiling.machine import ROOT
from profiling.nsight import decoding_run, one_launch, torch_profile
from profiling.nsight.decoding_run import DecodingRun
from profiling.nsight.timeline import range_rows
from rdk_cuda.functional import ranges

OPTIONS = Namespace(device="cpu", batch=2, threads=None, tokens=6, draft_length=2, keep=0.25)


@pytest.fixture(scope="module")
def run() -> DecodingRun:
    return decoding_run.prepare(OPTIONS)


@pytest.mark.slow
def test_the_decoder_marks_everything_that_the_legend_has(
    run: DecodingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    def attributes(message: str, payload: int) -> None:
        told.append((message, payload))

    domain = SimpleNamespace(
        get_event_attributes=attributes,
        push_range=lambda _: None,
        pop_range=lambda: None,
        mark=lambda _: None,
    )
    monkeypatch.setattr(ranges, "_DOMAIN", domain)
    monkeypatch.setattr(ranges, "_ATTRIBUTES", {})
    monkeypatch.setattr(ranges, "_MOST_ATTRIBUTES", 0)
    statistics = run.decode().statistics
    assert {name for name, _ in told} == set(ranges.LEGEND) - {"redistribute"}
    payloads = {name: [value for said, value in told if said == name] for name in ranges.LEGEND}
    assert sum(payloads["step"]) == statistics.target_passes
    assert sum(payloads["verify"]) >= sum(statistics.drafted)
    assert sum(payloads["drafter forward"]) >= sum(payloads["verify"])
    assert sum(payloads["accepted"]) >= sum(statistics.accepted)
    assert set(payloads["draft"]) <= {1, 2}


@pytest.mark.slow
def test_torch_profile_shows_where_a_step_goes(
    run: DecodingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_run, "prepare", lambda options: run)
    assert torch_profile.main(["--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    content = json.loads((tmp_path / "timeline.json").read_text())
    rows = {row["range"]: row for row in content["ranges"]}
    # torch.profiler has no marks, and the decoder redistributes nothing in full.
    parts = set(ranges.LEGEND) - {"accepted", "redistribute"}
    assert set(rows) == parts
    inner = sum(row["total_ms"] for name, row in rows.items() if name != "step")
    assert 0.5 * rows["step"]["total_ms"] < inner <= rows["step"]["total_ms"]
    operators = {(row["kernel"], row["range"]) for row in content["kernels"]}
    assert {("rdk::verify", "verify"), ("rdk::draft", "draft")} <= operators
    assert content["command"] == "python -m profiling.nsight.torch_profile --device cpu"  # no paths
    assert (tmp_path / "timeline.md").read_text().startswith(f"`{content['command']}`")


def event(name: str, start: float, end: float, device: str = "CPU", **more: object) -> object:
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=SimpleNamespace(name=device),
        thread=1,
        **{"kernels": [], "self_cpu_time_total": 0.0, **more},
    )


def test_on_a_gpu_kernels_count_where_their_operator_ran() -> None:
    """As torch.profiler gives them: an operator lists its kernels, in microseconds."""
    kernel = SimpleNamespace(name="verify_kernel", duration=24.5)
    events = [
        event("rdk: step", 0, 100),
        event("rdk: verify", 10, 60),
        event("rdk::verify", 20, 30, kernels=[kernel]),
        event("verify_kernel", 70, 94.5, device="CUDA"),
    ]
    rows = {row["range"]: row for row in range_rows(torch_profile.timeline_of(events, "GPU"))}
    assert (rows["verify"]["launches"], rows["verify"]["work_ms"]) == (1, pytest.approx(0.0245))
    assert rows["step"]["work_ms"] == pytest.approx(0.0245)


def test_launches_can_be_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    assert one_launch.main(["--device", "cpu", "--preset", "tiny", "--cases", str(cases)]) == 0
    rows = json.loads(cases.read_text())["cases"]
    operators = [row["operator"] for row in rows]
    assert operators == ["draft", "verify", "verify", "redistribute", "gather_logits"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["one_launch", "decoding_run", "torch_profile"])
def test_without_a_gpu_they_say_so_in_one_line(module: str) -> None:
    command = [sys.executable, "-m", f"profiling.nsight.{module}", "--device", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "sees no GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("script", "tool"), [("nsys.sh", "nsys"), ("ncu.sh", "ncu")])
def test_a_missing_profiler_is_named_with_where_to_get_it(
    tmp_path: Path, script: str, tool: str
) -> None:
    for needed in ("bash", "dirname", "env"):
        (tmp_path / needed).symlink_to(f"/usr/bin/{needed}")
    done = run_script(script, tmp_path)
    assert done.returncode == 2
    assert f"profiling/nsight/{script}: {tool} is not on the PATH. It comes with" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("script", "tool"), [("nsys.sh", "nsys"), ("ncu.sh", "ncu")])
def test_a_profiler_without_a_gpu_is_not_started(tmp_path: Path, script: str, tool: str) -> None:
    for needed in ("bash", "dirname", "env"):
        (tmp_path / needed).symlink_to(f"/usr/bin/{needed}")
    (tmp_path / tool).write_text("#!/bin/bash\necho started\n")
    (tmp_path / tool).chmod(0o755)
    done = run_script(script, tmp_path)
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize(("script", "module"), [("nsys", "decoding_run"), ("ncu", "one_launch")])
def test_help_needs_no_profiler(tmp_path: Path, script: str, module: str, option: str) -> None:
    for needed in ("bash", "dirname", "env", "sed"):
        (tmp_path / needed).symlink_to(f"/usr/bin/{needed}")
    done = run_script(f"{script}.sh", tmp_path, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        f"\n  profiling/nsight/{script}.sh [FOLDER] [OPTIONS OF python -m profiling." in done.stdout
    )
    assert f"python -m profiling.nsight.{module} --help" in done.stdout
    assert "#" not in done.stdout


def test_nsight_compute_starts_every_pass_with_cold_caches(tmp_path: Path) -> None:
    """As the benchmark does; here ncu and the GPU are made up, so nothing comes after."""
    for needed in ("bash", "dirname", "env", "mkdir"):
        (tmp_path / needed).symlink_to(f"/usr/bin/{needed}")
    for name, body in (("ncu", f'echo "$*" >"{tmp_path}/asked"; exit 1'), ("python", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    python = str(tmp_path / "python")
    done = run_script("ncu.sh", tmp_path, str(tmp_path / "folder"), python=python)
    assert "ncu failed" in done.stderr
    assert "--cache-control=all" in (tmp_path / "asked").read_text().split()


def run_script(
    script: str, path: Path, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(path), "PYTHON": python}
    command = [str(ROOT / "profiling/nsight" / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
