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


def looked(**changes: Any) -> Any:
    found = MACHINE | changes
    return lambda options: (found, Outcome("passed", 0.1, 30, "a made-up machine"))


def check(*given: str, parts: list[Part], output: Path, **changes: Any) -> int:
    folders = ["--output", str(output), "--results", str(output / "results")]
    return main([*given, *folders], looked(**changes), lambda machine, folder: parts)


def results(output: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((output / "results.json").read_text())
    return loaded


GOOD = Part("good", "prints", 20, [python("print('3 passed in 1 s')")])
BAD = Part("bad", "fails", 20, [python("print('reason'); print('1 failed'); exit(3)")])


def test_all_that_was_found_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = Part("last", "", 20, GOOD.commands)
    assert check(parts=[GOOD, BAD, last], output=tmp_path) == 1
    printed = capsys.readouterr().out
    assert "reason\n1 failed" in printed  # the end of the log of a part that failed
    summary = printed.split("\n\n")[-2]
    assert [line.split()[:2] for line in summary.splitlines()[1:]] == [
        ["environment", "passed"],
        ["good", "passed"],
        ["bad", "failed"],
        ["last", "passed"],
    ]
    assert "3 passed in 1 s" in summary
    assert "exit status 3: 1 failed" in summary
    saved = results(tmp_path)
    assert saved["machine"] == MACHINE
    assert saved["parts"]["bad"]["outcome"] == "failed"
    assert saved["parts"]["good"]["limit"] == 20
    assert (tmp_path / "good.log").read_text() == "3 passed in 1 s\n"


def test_parts_that_pass_are_status_0(tmp_path: Path) -> None:
    assert check(parts=[GOOD], output=tmp_path) == 0


def test_the_first_command_that_fails_ends_a_part(tmp_path: Path) -> None:
    part = Part("both", "", 20, [BAD.commands[0], python("print('never')")])
    assert check(parts=[part], output=tmp_path) == 1
    assert "never" not in (tmp_path / "both.log").read_text()


SLEEPING_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("sleeping", flush=True)
time.sleep(600)
"""


def lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_part_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    slow = Part("slow", "", 2.0, [[*python(SLEEPING_CHILD), str(tmp_path / "pid")]])
    start = time.monotonic()
    outcome = run(slow, tmp_path / "slow.log")
    assert outcome.outcome == "timed out"
    assert time.monotonic() - start < 10
    assert not lives(int((tmp_path / "pid").read_text()))


def test_a_part_that_takes_too_long_can_still_say_what_it_found(tmp_path: Path) -> None:
    """As pytest and the benchmark do after Ctrl-C."""
    code = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('2 failed, 7 passed')"
    with stoppable():  # who runs the tests may ignore SIGINT, as programs then do that they start
        outcome = run(Part("slow", "", 1.0, [python(code)]), tmp_path / "log")
    assert outcome.outcome == "timed out"
    assert outcome.detail == "ended after its 1 s: 2 failed, 7 passed"


def test_what_a_part_leaves_running_is_ended_too(tmp_path: Path) -> None:
    code, _, _ = SLEEPING_CHILD.rpartition("time.sleep")
    leaves = Part("leaves", "", 20, [[*python(code), str(tmp_path / "pid")]])
    assert run(leaves, tmp_path / "log").outcome == "passed"
    assert not lives(int((tmp_path / "pid").read_text()))


def test_a_process_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gpu.running.GRACE", 0.2)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    start = time.monotonic()
    assert run(Part("deaf", "", 1.0, [python(code)]), tmp_path / "log").outcome == "timed out"
    assert time.monotonic() - start < 10


def test_a_part_whose_file_is_not_there_fails_with_a_sentence(tmp_path: Path) -> None:
    part = Part("needs", "", 20, GOOD.commands, needs=ROOT / "profiling" / "nowhere.py")
    assert check(parts=[part], output=tmp_path) == 1
    detail = results(tmp_path)["parts"]["needs"]["detail"]
    assert detail == "profiling/nowhere.py is not there, which is what this part runs"


def test_a_part_that_cannot_run_here_is_skipped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Part("tool", "", 20, BAD.commands, skipped="the tool is not installed")
    assert check(parts=[part], output=tmp_path) == 0
    assert re.search(
        r"^tool +skipped +0.0 +the tool is not installed$", capsys.readouterr().out, re.M
    )


# ----------------------------------------------------------------------------------------- archive


def archived(output: Path) -> dict[str, str]:
    """The texts of the one file that is handed back, by name."""
    (path,) = (output / "results").iterdir()
    assert path.name == f"{output.name}.tar.gz"
    with tarfile.open(path) as files:
        return {
            member.name.removeprefix(f"{output.name}/"): files.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in files
        }


def outcomes(texts: dict[str, str]) -> dict[str, str]:
    found = json.loads(texts["results.json"])["parts"]
    return {name: outcome["outcome"] for name, outcome in found.items()}


def test_the_archive_is_written_anew_after_every_part(tmp_path: Path) -> None:
    """The second part sees that of the first, as a cut in its middle would leave it."""
    path = tmp_path / "results" / f"{tmp_path.name}.tar.gz"
    look_into = f"import tarfile; print(*sorted(tarfile.open({str(path)!r}).getnames()))"
    last = Part("last", "", 20, [python(look_into)])
    assert check(parts=[GOOD, last, BAD], output=tmp_path) == 1
    texts = archived(tmp_path)
    before = ("good.log", "results.json")
    assert texts["last.log"].split() == [f"{tmp_path.name}/{name}" for name in before]
    assert "1 failed" in texts["bad.log"]
    assert outcomes(texts) == {
        "environment": "passed",
        "good": "passed",
        "last": "passed",
        "bad": "failed",
    }


def test_a_cut_loses_one_part_and_not_all(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for("sleeping", tmp_path / "slow.log")
    process.kill()
    process.wait(timeout=30)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # nobody was left to end it
    texts = archived(tmp_path)
    assert outcomes(texts) == {"environment": "passed", "good": "passed"}
    assert texts["good.log"] == "3 passed in 1 s\n"


def test_an_archive_is_no_larger_than_may_be_handed_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LARGEST", 100_000)
    write = f"from pathlib import Path; import os; f = Path({str(tmp_path)!r})"
    write += (
        "; (f / 'noise').write_bytes(os.urandom(200_000)); (f / 'text').write_text('a' * 10**6)"
    )
    assert check(parts=[GOOD, Part("files", "", 20, [python(write)])], output=tmp_path) == 0
    (path,) = (tmp_path / "results").iterdir()
    assert path.stat().st_size < 100_000
    assert set(archived(tmp_path)) == {"good.log", "files.log", "results.json", "text"}
    assert f"{path}, without {tmp_path.name}/noise\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_shows_the_archive_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sanitizers' sweep, by the operators for the CPU; one tool is as good as four."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folders = ["--output", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main(["--dry-run", "--sanitize", "--part", "memcheck", *folders]) == 0
    texts = archived(tmp_path)
    assert set(texts) == {"environment.log", "memcheck.log", "results.json"}
    assert outcomes(texts) == {"environment": "passed", "memcheck": "passed"}
    assert re.fullmatch(r"\d\d calls\n", texts["memcheck.log"])
    assert json.loads(texts["results.json"])["machine"]["gpu"] == "dry run on the CPU"


# ------------------------------------------------------------------------------------------ resume


def counting(folder: Path, name: str) -> Part:
    """Leaves a line in a file for each time that it runs."""
    code = f"open({str(folder / name)!r}, 'a').write('ran\\n')"
    return Part(name, "", 20, [python(code)])


def test_what_passed_is_not_run_again_when_resumed(tmp_path: Path) -> None:
    every = [counting(tmp_path, "one"), BAD, counting(tmp_path, "two")]
    assert check("--part", "one", "--part", "bad", parts=every, output=tmp_path) == 1
    assert check("--resume", parts=every, output=tmp_path) == 1
    for name in ("one", "two"):
        assert (tmp_path / name).read_text() == "ran\n"
    assert list(results(tmp_path)["parts"]) == ["environment", "one", "bad", "two"]
    # What failed is not forgotten.
    assert check("--part", "one", parts=every, output=tmp_path) == 1
    assert (tmp_path / "one").read_text() == "ran\nran\n"


@pytest.mark.parametrize("changed", ["commit", "sources", "gpu", "driver", "torch"])
def test_other_sources_or_another_gpu_start_anew(tmp_path: Path, changed: str) -> None:
    every = [counting(tmp_path, "one")]
    assert check(parts=every, output=tmp_path) == 0
    assert check("--resume", parts=every, output=tmp_path, **{changed: "another"}) == 0
    assert (tmp_path / "one").read_text() == "ran\nran\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"machine": {}, "parts": 1}'])
def test_a_results_file_that_is_none_is_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    assert check("--resume", parts=[GOOD], output=tmp_path) == 0


def test_an_unknown_part_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--part", "god", parts=[GOOD], output=tmp_path) == 1
    assert "there is no part 'god'; there are good" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------- ends


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)


INTERRUPTED = """
import sys
from pathlib import Path
from tests.gpu.plumbing.test_gpu_check import *
folder = Path(sys.argv[1])
slow = Part("slow", "", 60, [[*python(SLEEPING_CHILD), str(folder / "pid")]])
sys.exit(check(parts=[GOOD, slow, GOOD], output=folder))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_the_running_part_and_still_sums_up(
    tmp_path: Path, number: int, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for("sleeping", tmp_path / "slow.log")
    os.kill(process.pid, number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == status, printed
    assert re.search(r"^slow +interrupted", printed, re.MULTILINE), printed
    assert "Traceback" not in printed
    assert not lives(int((tmp_path / "pid").read_text()))
    saved = results(tmp_path)["parts"]
    assert [saved[name]["outcome"] for name in ("good", "slow")] == ["passed", "interrupted"]
    assert not list(tmp_path.glob("*.unfinished"))


def no_gpu(options: object) -> tuple[dict[str, Any], Outcome]:
    raise NoGpuError("a sentence that says why")


def test_a_part_may_be_run_by_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [GOOD, replace(GOOD, name="long", by_name=True)]
    assert check(parts=every, output=tmp_path) == 0
    assert "long" not in results(tmp_path)["parts"]
    assert check("--part", "long", parts=every, output=tmp_path) == 0
    assert results(tmp_path)["parts"]["long"]["outcome"] == "passed"
    assert check("--resume", parts=every, output=tmp_path) == 0
    assert set(results(tmp_path)["parts"]) == {"environment", "good", "long"}


def test_without_a_gpu_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path)], no_gpu, lambda *_: [GOOD]) == 2
    assert capsys.readouterr().out == "no GPU here: a sentence that says why\n"
