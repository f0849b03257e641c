"""`python -m examples.demo` from end to end, on two tiny models."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rdk_cuda
from examples.demo import experiment, report
from examples.demo.__main__ import main
from examples.demo.checks import Check
from profiling.machine import ROOT
from tests import interruptible

from .conftest import SHORT

pytestmark = pytest.mark.ci

METHODS = ["full drafter"] + 2 * [
    "pruned drafter",
    "first-order RDK",
    "dynamic tokens",
    "virtual tokens",
    "virtual+dynamic",
]
WAYS = [
    "target alone",
    "Transformers: generate",
    "Transformers: assisted",
    "full head, 400 rows",
    "pruned to 25 rows",
    "virtual and dynamic tokens",
]


# `python -m examples.demo`, with as little text as the tests of this process.
WITH_LITTLE_TEXT = """
import runpy
import pytest
from tests.demo.conftest import read_little_text

read_little_text(pytest.MonkeyPatch())
runpy.run_module("examples.demo", run_name="__main__", alter_sys=True)
"""


def arguments(directories: tuple[Path, Path], output: Path, *more: str) -> list[str]:
    target, drafter = map(str, directories)
    chosen = ("--target", target, "--drafter", drafter, "--output", str(output))
    return [*chosen, *SHORT, *more]


@pytest.fixture(scope="module")
def finished(
    directories: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The output directory, and what was printed."""
    output = tmp_path_factory.mktemp("demo") / "new" / "output"
    command = [sys.executable, "-c", WITH_LITTLE_TEXT, *arguments(directories, output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return output, done.stdout + done.stderr


def test_two_files_are_written_and_everything_measured_is_printed(
    finished: tuple[Path, str],
) -> None:
    output, printed = finished
    assert sorted(path.name for path in output.iterdir()) == ["acceptance.png", "results.json"]
    assert (output / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    checks = [f"passed  {name} output" for name in ("greedy", "sampled")]
    meanings = [f"{name}: " for name in report.MEANINGS]
    for text in (*METHODS, *WAYS, *checks, *meanings, "resampled", "bonus", "Greedy, 1 sequence"):
        assert text in printed
    assert "\x1b" not in printed
    assert "Warning" not in printed


def fields(value: Any, at: str = "") -> Iterator[str]:
    """Of dictionaries inside of each other; of a list those of its last entry."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{at}.{name}"
        yield from fields(inner, f"{at}.{name}")
    if isinstance(value, list) and value:
        yield from fields(value[-1], at)


def test_the_file_has_the_fields_of_the_committed_one_and_every_method_and_way(
    finished: tuple[Path, str],
) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (finished[0] / "results.json").read_text(encoding="utf-8")
    results: dict[str, Any] = json.loads(text, parse_constant=refuse)
    recorded = json.loads((ROOT / "profiling/results/demo/results.json").read_text("utf-8"))
    assert set(fields(recorded)) <= set(fields(results))
    assert [row["method"] for row in results["acceptance"]] == METHODS
    speeds = [(row["temperature"], row["way"]) for row in results["speed"]]
    assert speeds == [(temperature, way) for temperature in (0.0, 1.0) for way in WAYS]
    for row in results["acceptance"]:
        assert 0 < row["acceptance"]["low"] <= row["acceptance"]["high"] < 1
    assert sum(row["chosen"] for row in results["speed"]) == 2
    assert [check["passed"] for check in results["checks"]] == [True, True]
    assert results["versions"]["rdk_cuda"] == rdk_cuda.__version__


def test_a_prompt_of_the_user_is_continued_and_a_failed_check_is_the_exit_code(
    directories: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = Check("greedy output", False, "none of it", {"different": 1})
    monkeypatch.setattr(experiment, "check_greedy", lambda *_: failed)
    more = ("--prompt", "import os, sys", "--keep", "0.1", "--keep", "0.5", "--temperature", "0.8")
    assert main(arguments(directories, tmp_path, *more)) == 1
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["prompt"] == "import os, sys"
    assert results["settings"]["keep"] == [0.5]
    assert results["continuation"]["prompt"] == "import os, sys"
    assert [check["passed"] for check in results["checks"]] == [False, True]
    printed = capsys.readouterr().out
    assert "import os, sys" in printed
    assert "FAILED  greedy output: none of it." in printed


def test_ctrl_c_ends_it_with_one_line_and_no_files(
    directories: tuple[Path, Path], tmp_path: Path
) -> None:
    given = arguments(directories, tmp_path, "--tokens", "300", "--keep", "0.1")
    process = interruptible.start([sys.executable, "-c", WITH_LITTLE_TEXT, *given])
    printed = ""
    while "Decoding" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in errors
    assert "tokens/s" not in out
    assert list(tmp_path.iterdir()) == []


def test_training_goes_to_the_output_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: dict[str, Any] = {}

    def train(output: Path, *, working_directory: Path) -> None:
        called.update(output=output, working_directory=working_directory)

    monkeypatch.setattr("examples.demo.training.train", train)
    assert main(["--train", "--output", str(tmp_path)]) == 0
    assert called == {"output": tmp_path, "working_directory": tmp_path / "training"}
    assert f"--target {tmp_path / 'target'}" in capsys.readouterr().out
