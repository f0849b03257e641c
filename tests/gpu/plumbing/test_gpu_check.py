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
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import machine as machines
from tests.gpu.__main__ import NoGpuError, look, main
from tests.gpu.machine import ROOT, architecture, digest_of_sources
from tests.gpu.measurements import measurements, missing
from tests.gpu.parts import CUPY, OWN_PARTS, TOOLS, parts
from tests.gpu.running import Outcome, Part, run

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
    return lambda output: (found, Outcome("passed", 0.1, 30, "a made-up machine"))


def check(*given: str, parts: list[Part], output: Path, **changes: Any) -> int:
    arguments = [*given, "--output", str(output)]
    return main(arguments, looked(**changes), lambda machine, folder: parts)


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
    deadline = time.monotonic() + 60
    log = tmp_path / "slow.log"
    while time.monotonic() < deadline and "sleeping" not in (
        log.read_text() if log.exists() else ""
    ):
        time.sleep(0.05)
    os.kill(process.pid, number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == status, printed
    assert re.search(r"^slow +interrupted", printed, re.MULTILINE), printed
    assert "Traceback" not in printed
    assert not lives(int((tmp_path / "pid").read_text()))
    saved = results(tmp_path)["parts"]
    assert [saved[name]["outcome"] for name in ("good", "slow")] == ["passed", "interrupted"]
    assert not list(tmp_path.glob("*.unfinished"))


def no_gpu(output: Path) -> tuple[dict[str, Any], Outcome]:
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


# --------------------------------------------------------------------------------- the real thing


def real_parts(**changes: Any) -> list[Part]:
    return parts(MACHINE | changes, ROOT / "build" / "somewhere")


def real_measurements() -> list[Part]:
    return measurements(MACHINE, ROOT / "build" / "somewhere")


@pytest.mark.parametrize(
    ("given", "expected"), [([], real_parts), (["--measure"], real_measurements)]
)
def test_the_limits_are_ten_minutes_together(
    given: list[str], expected: Callable[[], list[Part]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--list"]) == 0
    printed = capsys.readouterr().out
    *rows, last = printed.splitlines()
    assert [row.split()[0] for row in rows[1:]] == [part.name for part in expected()]
    limits = (re.search(r" (\d+)(?:  \S.*)?$", row) for row in rows)  # the reason to skip behind
    by_name = sum(part.limit for part in expected() if part.by_name)
    total = sum(int(limit[1]) for limit in limits if limit) - by_name
    assert last == f"together at most {total} s"
    assert total <= 600


def test_every_module_of_the_folder_belongs_to_one_part() -> None:
    modules = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    own = {module for _, _, module in OWN_PARTS.values()}
    assert own <= modules
    (tests,) = [part for part in real_parts() if part.name == "tests"]
    ignored = {Path(a).name for a in tests.commands[0] if a.startswith("--ignore=")}
    assert ignored == own


def test_every_file_that_a_part_runs_is_there_or_missed_by_name() -> None:
    for part in (*real_parts(), *real_measurements()):
        for command in part.commands:
            for argument in command:
                if argument.endswith((".py", ".sh")) and part.needs is None:
                    assert (ROOT / argument.removeprefix("--ignore=")).exists(), argument
            if "-m" in command and command[2].startswith(("tests.", "profiling.")):
                assert (ROOT / command[2].replace(".", "/")).with_suffix(".py").exists()


def test_a_measurement_without_its_packages_is_skipped_by_name() -> None:
    assert missing("json", "no_such_module", "nor_this") == "no_such_module, nor_this not installed"
    assert missing("json") == ""


def test_without_xdist_and_compute_sanitizer_the_rest_still_runs() -> None:
    bare = real_parts(xdist=False, compute_sanitizer=None)
    assert [part.name for part in bare if part.skipped] == [CUPY, *TOOLS]
    assert not [part for part in real_parts(cupy=True) if part.skipped]
    assert not [part for part in bare for command in part.commands if "-n" in command]


@pytest.mark.parametrize(("capability", "arch"), [("8.0", "80"), ("9.0", "90a"), ("12.0", "120")])
def test_the_kernels_are_built_for_the_gpu_that_is_there(
    capability: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RDK_ARCHS", raising=False)
    assert architecture(capability) == arch
    assert real_parts(capability=capability)[0].environment["RDK_ARCHS"] == arch
    monkeypatch.setenv("RDK_ARCHS", "86")
    assert real_parts(capability=capability)[0].environment["RDK_ARCHS"] == "86"


def test_looking_for_a_gpu_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoGpuError, match="torch"):
        look(tmp_path)


def test_a_command_that_is_not_there_tells_nothing() -> None:
    assert machines.output("no-such-command-anywhere") is None
    assert machines.output(sys.executable, "-c", "exit(1)") is None
    assert machines.output(sys.executable, "-c", "print('1.2')") == "1.2"


def test_the_digest_of_the_sources_changes_with_them(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    before = digest_of_sources(tmp_path, ["*.py"])
    assert before == digest_of_sources(tmp_path, ["*.py"])
    file.write_text("2")
    assert before != digest_of_sources(tmp_path, ["*.py"])
