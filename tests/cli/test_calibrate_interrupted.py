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

import pytest

from rdk_cuda.__main__ import main
from tests import interruptible

from .calibrating import Pair, command, count_reads, digests, refusal, write_texts

MANY = ("--positions", 100000)  # all 16 windows, in 2 batches

# As the command is, but its models and its methods take their time.
SLOW = """
import sys, time
from functools import partial
import torch
from rdk_cuda.__main__ import main
from rdk_cuda.calibration import Pruning
from rdk_cuda.cli import recording_file
from rdk_cuda.pair import pairs

def slowly(function):
    def run(*arguments):
        time.sleep(0.7)
        return function(*arguments)
    return run

read_models = pairs.read_models
pairs.read_models = lambda *models: slowly(read_models(*models))
recording_file.record = partial(recording_file.record, save_every=0.0)
Pruning.method = slowly(Pruning.method)
torch.set_num_threads(1)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_texts(tmp_path_factory.mktemp("text"), count=20, words=100)


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


GOES_ON = re.compile(
    r"Interrupted\. .*/out\.recording\.tmp \(.* [kM]B\) has what was read; "
    r"the same command goes on from it\."
)


def interrupted_while_calibrating(argv: list[str]) -> None:
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
    assert GOES_ON.fullmatch(errors.rstrip("\n"))
    assert out == ""


@pytest.mark.ci
def test_a_killed_and_an_interrupted_run_go_on_and_end_as_an_uninterrupted_one(
    directories: Pair, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = count_reads(monkeypatch)
    (tmp_path / "uninterrupted").mkdir()
    assert main(command(directories, files, tmp_path / "uninterrupted" / "out", *MANY)) == 0
    every = sum(counted)
    for name in ("killed", "interrupted"):
        folder = tmp_path / name
        folder.mkdir()
        argv = command(directories, files, folder / "out", *MANY)
        if name == "killed":
            killed_while_reading(argv, folder / "out.recording.tmp")
        else:
            interrupted_while_calibrating(argv)
        assert os.listdir(folder) == ["out.recording.tmp"]
        counted.clear()
        assert main(argv) == 0
        assert counted[0] == 1  # one token, to learn the sizes
        assert sum(counted) < every if name == "killed" else counted == [1]
        assert digests(folder / "out") == digests(tmp_path / "uninterrupted" / "out")
        assert os.listdir(folder) == ["out"]


def test_an_interruption_while_writing_keeps_what_was_read_for_the_same_arguments_only(
    pair: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is half written; other arguments are told what differs, and which file to delete."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rdk_cuda.drafter.PrunedDrafter.save", interrupted)
    output, state = tmp_path / "out", tmp_path / "out.recording.tmp"
    argv = command(pair, files, output)
    before = set(tmp_path.iterdir())
    assert main(argv) == 130
    assert GOES_ON.fullmatch(capsys.readouterr().err.splitlines()[-1])
    assert set(tmp_path.iterdir()) == before | {state}
    content = state.read_bytes()

    def refused(argv: list[str]) -> str:
        answer = refusal(capsys, argv)
        assert f"{state}: " in answer
        assert "move or delete it to begin anew" in answer
        assert state.read_bytes() == content
        assert not output.exists()
        return answer

    answer = refused([*argv, "--temperature", "1", "0.5"])
    assert "has the text at --temperature 1, not at 0.5; give some of these, or" in answer
    answer = refused([*argv, "--seed", "3"])
    assert "is of another run: --seed was 0 and is 3. Give the same to go on, or" in answer
    copy = shutil.copytree(pair[1], tmp_path / "copy")
    assert "the pair, or how it reads (--target, --drafter, " in refused(
        command((pair[0], copy), files, output)
    )
    os.utime(pair[1] / "model.safetensors")  # as if it had been trained on
    assert "the pair, or how it reads (--target, --drafter, " in refused(argv)


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
