"""A calibration that was killed or interrupted leaves no half of anything, and goes on later."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("rich")

from rdk_cuda.__main__ import main
from rdk_cuda.calibration.recording.reading import Read, Reading
from rdk_cuda.cli import recorded_text
from tests import interruptible

from .calibrating import (
    command,
    digests,
    refusal,
    write_texts,
)

Pair = tuple[Path, Path]
MANY = ("--positions", 100000)  # all 16 windows, in 2 batches

# As the command is, but its models and its methods take their time.
SLOW = """
import sys, time
from functools import partial
import torch
from rdk_cuda.__main__ import main
from rdk_cuda.calibration import Pruning
from rdk_cuda.cli import recorded_text

def slowly(function):
    def run(*arguments):
        time.sleep(0.7)
        return function(*arguments)
    return run

read_models = recorded_text.read_models
recorded_text.read_models = lambda *models: slowly(read_models(*models))
recorded_text.record = partial(recorded_text.record, save_every=0.0)
Pruning.method = slowly(Pruning.method)
torch.set_num_threads(1)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_texts(tmp_path_factory.mktemp("text"), count=20, words=100)


@pytest.fixture(scope="module")
def uninterrupted(
    directories: Pair, files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The digests of all files."""
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert main(command(directories, files, output, *MANY)) == 0
    torch.set_num_threads(threads)
    return digests(output)


def start(argv: list[str]) -> subprocess.Popen[str]:
    return interruptible.start([sys.executable, "-c", SLOW, *argv])


def killed_while_reading(argv: list[str], state: Path) -> None:
    """Ends as soon as there is something to go on from."""
    process = start(argv)
    deadline = time.monotonic() + 120
    while not state.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each reading of the calibration text has; the list grows."""
    counted: list[int] = []
    read_models = recorded_text.read_models

    def counting(target: Any, drafter: Any) -> Read:
        read = read_models(target, drafter)

        def count(ids: torch.Tensor) -> Reading:
            counted.append(len(ids))
            return read(ids)

        return count

    monkeypatch.setattr(recorded_text, "read_models", counting)
    return counted


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_as_an_uninterrupted_one(
    directories: Pair,
    files: list[Path],
    uninterrupted: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = command(directories, files, tmp_path / "out", *MANY)
    killed_while_reading(argv, tmp_path / "out.recording.tmp")
    assert [path.name for path in tmp_path.iterdir()] == ["out.recording.tmp"]
    counted = count_reads(monkeypatch)
    assert main(argv) == 0
    assert counted[0] == 1  # one token, to learn the sizes
    assert 0 < sum(counted[1:]) < 16
    assert digests(tmp_path / "out") == uninterrupted
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_ctrl_c_while_calibrating_is_one_line_and_what_was_read_is_kept(
    directories: Pair,
    files: list[Path],
    uninterrupted: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = command(directories, files, tmp_path / "out", *MANY)
    process = start(argv)
    assert process.stderr is not None
    printed = ""
    while "Calibrating: offsets" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    kept, end = errors.splitlines()
    assert re.fullmatch(
        r".*/out\.recording\.tmp \(.* MB\) has what was read; the same command goes on from it\.",
        kept,
    )
    assert end == "Interrupted."
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out.recording.tmp"]
    counted = count_reads(monkeypatch)
    assert main(argv) == 0
    assert counted == [1]
    assert digests(tmp_path / "out") == uninterrupted


@pytest.fixture
def _interrupted_while_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rdk_cuda.calibration.drafter.PrunedDrafter.save", interrupted)


@pytest.mark.usefixtures("_interrupted_while_writing")
def test_ctrl_c_while_writing_leaves_nothing_half_written(
    directories: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(directories, files, tmp_path / "out")) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted."
    assert [path.name for path in tmp_path.iterdir()] == ["out.recording.tmp"]


@pytest.mark.usefixtures("_interrupted_while_writing")
def test_other_arguments_are_told_from_those_of_the_state(
    pair: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what differs, which file to delete, and leaves that as it was."""
    output, state = tmp_path / "out", tmp_path / "out.recording.tmp"
    argv = command(pair, files, output)
    assert main(argv) == 130
    capsys.readouterr()
    before = state.read_bytes()

    def refused(argv: list[str]) -> str:
        answer = refusal(capsys, argv)
        assert f"{state}: " in answer
        assert "move or delete it to begin anew" in answer
        assert state.read_bytes() == before
        assert not output.exists()
        return answer

    answer = refused([*argv, "--temperature", "1", "0.5"])
    assert "has the text at --temperature 1, not at 0.5; give some of these, or" in answer
    answer = refused([*argv, "--seed", "3"])
    assert "is of another run: --seed was 0 and is 3. Give the same to go on, or" in answer
    assert "--window was 16 and is 17" in refused([*argv, "--window", "17"])
    assert "the text (--text, --held-out, --pos" in refused(command(pair, files[1:], output))
    copy = shutil.copytree(pair[1], tmp_path / "copy")
    assert "the pair (--target, --drafter) was" in refused(command((pair[0], copy), files, output))
    os.utime(pair[1] / "model.safetensors")  # as if it had been trained on
    assert "the pair (--target, --drafter) was" in refused(argv)


def test_a_damaged_state_is_refused_with_what_to_delete(
    directories: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "out.recording.tmp"
    state.write_bytes(b"\x08" + bytes(100))
    answer = refusal(capsys, command(directories, files, tmp_path / "out"))
    assert f"{state} is not a complete safetensors file" in answer
    assert "move or delete it to begin anew" in answer
    state.unlink()
    state.mkdir()
    answer = refusal(capsys, command(directories, files, tmp_path / "out"))
    assert f"{state}: is not a regular file; move or delete it" in answer
