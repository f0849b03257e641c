"""`python3 -m tests.gpu` ends parts in time, resumes, sums up and says with its status how it went.

The parts here are tiny commands, and the machine is made up.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import report
from tests.gpu.__main__ import NoGpuError, main
from tests.gpu.machine import ROOT
from tests.gpu.running import (
    Outcome,
    Part,
    run,
    stoppable,
)

MACHINE = {
    "commit": "0123456789abcdef",
    "sources": "fedcba",
    "gpu": "A GPU",
    "driver": "1.2",
    "torch": "2.11.0+cu130",
    "capability": "9.0",
    "compute_sanitizer": "/somewhere/compute-sanitizer",
    "xdist": True,
    "cupy": False,
}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def check(*given: str, parts: list[Part], output: Path, **changes: Any) -> int:
    folders = ["--output", str(output), "--results", str(output / "results")]
    found = MACHINE | changes, Outcome("passed", 0.1, 30, "a made-up machine")
    return main([*given, *folders], lambda options: found, lambda machine, folder: parts)


def archived(output: Path) -> dict[str, str]:
    """The texts of the one file that is handed back, by name."""
    (path,) = (output / "results").iterdir()
    assert path.name == f"{output.name}.tar.gz"
    with tarfile.open(path) as files:
        return {
            member.name.removeprefix(f"{output.name}/"): files.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in files
        }


def outcomes(text: str) -> dict[str, str]:
    """By part, in their order, of results.json."""
    return {name: outcome["outcome"] for name, outcome in json.loads(text)["parts"].items()}


GOOD = Part("good", "prints", 20, [python("print('3 passed in 1 s')")])
BAD = Part("bad", "fails", 20, [python("print('reason'); print('1 failed'); exit(3)")])
SKIPPED = replace(BAD, name="tool", skipped="the tool is not installed")


def test_all_that_was_found_is_printed_written_and_archived_after_every_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second part looks into the archive of the first, as a cut in its middle would leave it;
    the first command that fails ends a part."""
    path = tmp_path / "results" / f"{tmp_path.name}.tar.gz"
    look = python(f"import tarfile; print(*sorted(tarfile.open({str(path)!r}).getnames()))")
    parts = [GOOD, Part("look", "", 20, [look]), SKIPPED]
    assert check(parts=parts, output=tmp_path) == 0
    bad = replace(BAD, commands=[*BAD.commands, python("print('never')")])
    assert check(parts=[*parts, bad], output=tmp_path) == 1
    printed = capsys.readouterr().out
    assert "reason\n1 failed" in printed  # the end of the log of a part that failed
    summary = printed.split("\n\n")[-2]
    assert "3 passed in 1 s" in summary
    assert "exit status 3: 1 failed" in summary
    assert re.search(r"^tool +skipped +0.0 +the tool is not installed$", summary, re.M)
    texts = archived(tmp_path)
    assert texts["good.log"] == (tmp_path / "good.log").read_text() == "3 passed in 1 s\n"
    assert f"{tmp_path.name}/good.log" in texts["look.log"]
    assert f"{tmp_path.name}/results.json" in texts["look.log"]
    assert "never" not in texts["bad.log"]
    assert json.loads(texts["results.json"])["machine"] == MACHINE
    expected = {"environment": "passed", "good": "passed", "look": "passed"}
    assert outcomes(texts["results.json"]) == expected | {"tool": "skipped", "bad": "failed"}


def test_an_archive_is_no_larger_than_may_be_handed_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LARGEST", 100_000)
    (tmp_path / "noise").write_bytes(os.urandom(200_000))
    (tmp_path / "text").write_text("a" * 10**6)
    assert check(parts=[GOOD], output=tmp_path) == 0
    assert set(archived(tmp_path)) == {"good.log", "results.json", "text"}
    assert f"without {tmp_path.name}/noise\n" in capsys.readouterr().out


@pytest.mark.night
def test_a_dry_run_shows_the_archive_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sanitizers' sweep, by the operators for the CPU; one tool is as good as four."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folders = ["--output", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main(["--dry-run", "--sanitize", "--part", "memcheck", *folders]) == 0
    texts = archived(tmp_path)
    assert set(texts) == {"environment.log", "memcheck.log", "results.json"}
    assert outcomes(texts["results.json"]) == {"environment": "passed", "memcheck": "passed"}
    assert re.fullmatch(r"\d+ calls\n", texts["memcheck.log"])
    assert json.loads(texts["results.json"])["machine"]["gpu"] == "dry run on the CPU"


# ------------------------------------------------------------------------------------------ resume


def test_what_passed_for_the_same_sources_and_gpu_is_not_run_again_when_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('.')"
    counting = Part("counting", "", 20, [python(count)])
    by_name = replace(GOOD, name="long", by_name=True)
    every = [counting, BAD, by_name]

    def runs(*given: str, status: int = 1, **changes: Any) -> int:
        assert check(*given, parts=every, output=tmp_path, **changes) == status
        return len((tmp_path / "runs").read_text())

    def found() -> dict[str, str]:
        return outcomes((tmp_path / "results.json").read_text())

    assert runs("--part", "counting", status=0) == 1
    assert runs("--resume") == 1
    assert found() == {"environment": "passed", "counting": "passed", "bad": "failed"}
    assert runs("--part", "long") == 1  # what failed is not forgotten
    assert found()["long"] == "passed"
    assert runs("--resume") == 1
    for changed in ("commit", "sources", "gpu", "driver", "torch"):
        check("--part", "counting", parts=every, output=tmp_path)
        ran = runs("--resume")
        assert runs("--resume", **{changed: "another"}) == ran + 1
    for text in ("", "{", "[]", '{"machine": {}, "parts": 1}'):
        (tmp_path / "results.json").write_text(text)
        assert check("--resume", parts=[GOOD], output=tmp_path) == 0
    assert check("--part", "god", parts=[GOOD], output=tmp_path) == 1
    assert "there is no part 'god'; there are good" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------- ends

# Starts a child that is hard to end, says what it found where it is interrupted, or ends at once.
STARTS_A_CHILD = """
import pathlib, subprocess, sys, time
deaf = "from signal import *; signal(SIGINT, SIG_IGN); signal(SIGTERM, SIG_IGN); pause()"
child = subprocess.Popen([sys.executable, "-c", deaf])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("sleeping", flush=True)
try:
    time.sleep(float(sys.argv[2]))
except KeyboardInterrupt:
    print("2 failed, 7 passed")
"""


def lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("sleeps", "outcome"), [(600, "timed out"), (0, "passed")])
def test_a_part_ends_in_time_with_all_that_it_started(
    sleeps: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what it had found, as pytest and the benchmark do after Ctrl-C."""
    monkeypatch.setattr("tests.gpu.running.GRACE", 1.5)
    command = [*python(STARTS_A_CHILD), str(tmp_path / "pid"), str(sleeps)]
    limit = 4.0 if sleeps else 60.0
    start = time.monotonic()
    with stoppable():  # who runs the tests may ignore SIGINT, as programs then do that they start
        found = run(Part("slow", "", limit, [command]), tmp_path / "log")
    assert found.outcome == outcome
    assert not sleeps or found.detail == "ended after its 4 s: 2 failed, 7 passed"
    assert time.monotonic() - start < limit + 20
    assert not lives(int((tmp_path / "pid").read_text()))


INTERRUPTED = """
import sys
from pathlib import Path
from tests.gpu.plumbing.test_gpu_check import *
folder = Path(sys.argv[1])
slow = Part("slow", "", 60, [[*python(STARTS_A_CHILD), str(folder / "pid"), "600"]])
sys.exit(check(parts=[GOOD, slow, GOOD], output=folder))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_ctrl_c_ends_the_running_part_and_still_sums_up(
    tmp_path: Path, number: int, status: int
) -> None:
    """And what kills it on the spot loses that part alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "slow.log"
    deadline = time.monotonic() + 60
    while "sleeping" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == status, printed
    found = {"environment": "passed", "good": "passed"}
    child = int((tmp_path / "pid").read_text())
    if number == signal.SIGKILL:
        os.killpg(os.getpgid(child), signal.SIGKILL)  # nobody was left to end the part
    else:
        found |= {"slow": "interrupted"}
        assert re.search(r"^slow +interrupted", printed, re.MULTILINE), printed
        assert "Traceback" not in printed
        assert not lives(child)
        assert not list(tmp_path.glob("*.unfinished"))
    assert outcomes(archived(tmp_path)["results.json"]) == found


def test_without_a_gpu_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu(options: object) -> tuple[dict[str, Any], Outcome]:
        raise NoGpuError("a sentence that says why")

    assert main(["--output", str(tmp_path)], no_gpu, lambda *_: [GOOD]) == 2
    assert capsys.readouterr().out == "no GPU here: a sentence that says why\n"
