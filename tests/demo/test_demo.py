"""`python -m examples.demo` from end to end, on two tiny models."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rdk_cuda
from examples.demo import experiment, report
from examples.demo.__main__ import main
from examples.demo.checks import Check
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


def test_the_file_has_the_figures_and_how_they_came_about(finished: tuple[Path, str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (finished[0] / "results.json").read_text(encoding="utf-8")
    results: dict[str, Any] = json.loads(text, parse_constant=refuse)
    rows = results["acceptance"]
    assert [row["method"] for row in rows] == METHODS
    pruned = [100, 100, 100, 108, 108, 25, 25, 25, 33, 33]
    assert [row["head_rows"] for row in rows] == [400, *pruned]
    for row in rows:
        # With virtual tokens, dynamic ones are there only where they help.
        dynamic = {"dynamic tokens": (0.1, 16), "virtual+dynamic": (0, 16)}
        least, most = dynamic.get(row["method"], (0, 0))
        assert least <= row["dynamic_columns"] <= most
        acceptance = row["acceptance"]
        assert 0 < acceptance["low"] <= acceptance["value"] <= acceptance["high"] < 1
    speeds = results["speed"]
    assert [(row["temperature"], row["way"]) for row in speeds] == [
        (temperature, way) for temperature in (0.0, 1.0) for way in WAYS
    ]
    for row in speeds:
        assert row["tokens"] == speeds[0]["tokens"] >= 10 * 8
        assert row["tokens_per_second"] > 0
        assert 0 < row["relative_speed"]["low"] <= row["relative_speed"]["value"]
        known = not row["way"].startswith("Transformers")
        assert row["draft_length"] in ((0, 4) if known else (None,))
        assert (row["target_passes_per_token"] is not None) is known
    assert sum(row["chosen"] for row in speeds) == 2
    settings = results["settings"]
    assert settings["keep"] == [0.25, 0.0625]
    assert settings["batches"] == [1]
    assert [settings[name] for name in ("virtual", "dynamic", "window")] == [8, 16, 256]
    assert results["versions"]["rdk_cuda"] == rdk_cuda.__version__
    assert results["versions"]["threads"] == 1
    assert results["positions"]["held_out"] >= 400
    assert results["elapsed_seconds"] > 0
    assert results["times_doubt"] is None or "do not trust" in results["times_doubt"]
    assert [check["passed"] for check in results["checks"]] == [True, True]
    shown = results["continuation"]
    assert len(shown["tokens"]) == len(shown["pieces"]) == len(shown["kinds"]) == 8
    assert set(shown["kinds"]) <= {"accepted", "out_of_vocabulary", "resampled", "bonus"}


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
    assert process.stderr is not None
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
