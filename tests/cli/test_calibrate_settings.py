"""Several shares and temperatures, and several calls, share one reading of the text."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("rich")

from rich.console import Console

from rdk_cuda.__main__ import main
from rdk_cuda.calibration.recording.reading import Read, Reading
from rdk_cuda.cli import recorded_text
from rdk_cuda.cli.progress import Stages
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter

from .calibrating import (
    command,
    digests,
    refusal,
    write_texts,
)

Pair = tuple[Path, Path]
KEEPS, TEMPERATURES = ("0.75", "0.8"), ("1", "0.7")
BOTH = ("--keep", *KEEPS, "--temperature", *TEMPERATURES)
NAMES = [f"keep-{keep}-temperature-{T}" for keep in KEEPS for T in TEMPERATURES]


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_texts(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def several(
    one_thread: None, directories: Pair, files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`out` for each share with each temperature, and the recording that they share."""
    folder = tmp_path_factory.mktemp("several")
    options = (*BOTH, "--recording", folder / "recording")
    assert main(command(directories, files, folder / "out", *options)) == 0
    return folder


def read_windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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


def settings_of(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((directory / "calibration.json").read_text())["settings"]
    return settings


def test_each_combination_has_a_directory_of_its_own(several: Path) -> None:
    assert sorted(path.name for path in several.iterdir()) == ["out", "recording"]
    assert sorted(path.name for path in (several / "out").iterdir()) == sorted(NAMES)
    for name in NAMES:
        settings = settings_of(several / "out" / name)
        assert name == f"keep-{settings['keep']}-temperature-{settings['temperature']:g}"
        _, drafter, _ = load_drafter(several / "out" / name)
        assert drafter.vocabulary.draft_size == round(400 * settings["keep"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_is_to_the_bit_what_a_call_of_its_own_writes(
    several: Path, directories: Pair, files: list[Path], tmp_path: Path, name: str
) -> None:
    _, keep, _, temperature = name.split("-")
    options = ("--keep", keep, "--temperature", temperature)
    assert main(command(directories, files, tmp_path / "out", *options)) == 0
    assert digests(tmp_path / "out") == digests(several / "out" / name)


@pytest.mark.slow
def test_the_text_is_read_once_for_all_of_them(
    directories: Pair, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = read_windows(monkeypatch)
    assert main(command(directories, files, tmp_path / "one")) == 0
    once = list(counted)
    counted.clear()
    assert main(command(directories, files, tmp_path / "several", *BOTH)) == 0
    assert counted == once


def test_a_setting_that_is_given_twice_is_one(
    directories: Pair, files: list[Path], tmp_path: Path
) -> None:
    twice = ("--keep", "0.75", "0.75", "--temperature", "1", "1.0")
    assert main(command(directories, files, tmp_path / "out", *twice)) == 0
    assert settings_of(tmp_path / "out")["keep"] == 0.75


def test_named_tokens_at_several_temperatures_are_named_by_these(
    directories: Pair, files: list[Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("399\n300\n7\n")
    options = ("--kept", kept, "--temperature", *TEMPERATURES)
    assert main(command(directories, files, tmp_path / "out", *options)) == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["temperature-0.7", "temperature-1"]


def test_several_are_replaced_as_a_whole_if_asked_and_other_folders_are_not(
    several: Path,
    directories: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(several / "out", tmp_path / "out")
    argv = command(directories, files, tmp_path / "out", "--overwrite")
    (tmp_path / "out" / "mine").touch()
    assert "is not overwritten" in refusal(capsys, argv)
    (tmp_path / "out" / "mine").unlink()
    assert main(argv) == 0
    assert settings_of(tmp_path / "out")["keep"] == 0.75


@pytest.mark.slow
def test_an_interruption_between_two_of_them_leaves_no_directory(
    directories: Pair, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = "rdk_cuda.calibration.drafter.PrunedDrafter.save"

    def interrupted(*arguments: object) -> None:
        written.append(arguments)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(write, interrupted)
    argv = command(directories, files, tmp_path / "out", *BOTH)
    assert main(argv) == 130
    assert os.listdir(tmp_path) == ["out.recording.tmp"]
    monkeypatch.undo()
    assert main(argv) == 0
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(NAMES)


# The recording.


def test_a_named_recording_is_used_again_for_other_settings(
    several: Path,
    directories: Pair,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = several / "recording"
    before = recording.read_bytes()
    counted = read_windows(monkeypatch)
    options = ("--keep", "0.9", "--temperature", "0.7")
    argv = command(directories, files, tmp_path / "again", *options)
    assert main([*argv, "--recording", str(recording)]) == 0
    assert counted == [1]  # one token, to learn the sizes
    captured = capsys.readouterr()
    said = captured.out.splitlines()[-1]
    assert re.match(rf"{recording} \(\d+\.\d MB\) kept: with --recording", said)
    assert re.search(rf"recording in {recording}, \d+\.\d MB of it so far, kept", captured.err)
    assert recording.read_bytes() == before
    assert main(command(directories, files, tmp_path / "alone", *options)) == 0
    assert digests(tmp_path / "again") == digests(tmp_path / "alone")


def test_the_temporary_recording_is_named_with_its_size_and_removed(
    directories: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(directories, files, tmp_path / "out")) == 0
    captured = capsys.readouterr()
    file = tmp_path / "out.recording.tmp"
    assert f"recording in {file}, at most 2 GiB, removed when all is done ..." in captured.err
    assert re.search(rf"{file} \(\d+\.\d MB\) removed; --recording FILE keeps it", captured.out)
    assert os.listdir(tmp_path) == ["out"]


def test_a_recording_of_other_temperatures_says_which_it_has_and_what_to_do(
    several: Path,
    directories: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = several / "recording"
    argv = command(directories, files, tmp_path / "out", "--recording", recording)
    answer = refusal(capsys, [*argv, "--temperature", "0.7", "0.5", "2"])
    assert answer.endswith(
        f"--recording {recording}: has the text at --temperature 1 0.7, not at 0.5 2; give some "
        "of these, or name another file"
    )


def test_a_recording_of_other_text_or_options_is_refused_by_name(
    several: Path,
    directories: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = several / "recording"
    before = recording.read_bytes()
    for text, options, message in (
        (files[1:], (), "the text (--text, --held-out, --positions) was"),
        (files, ("--seed", 3), "--seed was 0 and is 3"),
        (files, ("--window", 17), "--window was 16 and is 17"),
    ):
        argv = command(directories, text, tmp_path / "out", *options, "--recording", recording)
        answer = refusal(capsys, argv)
        assert f"--recording {recording}: is of another run: " in answer
        assert message in answer
        assert answer.endswith("Give the same to go on, or name another file")
    assert recording.read_bytes() == before
    assert os.listdir(tmp_path) == []


def test_places_where_no_recording_can_be_are_refused_before_models_are_loaded(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_models = (tmp_path / "none", tmp_path / "none")
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for file, message in (
        (tmp_path, "is not a regular file; name another file"),
        (tmp_path / "pipe", "is not a regular file; name another file"),
        (tmp_path / "missing" / "file", "is no directory; make it first"),
        (out, f"is in --out {out}"),
        (out / "recording", f"is in --out {out}"),
        (mine, "is not a complete safetensors file"),
    ):
        answer = refusal(capsys, command(no_models, files, out, "--recording", file))
        assert f"--recording {file}" in answer
        assert message in answer
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keep", "0.75", "0.5"), "--keep 0.5 is 200 tokens, fewer than the 257 special"),
        (("--keep", "0.75", "2"), "--keep: got '2'; needs a share"),
        (("--temperature", "1", "0"), "--temperature: got '0'; needs a number above 0"),
        (("--keep", "0.75", "0.8", "--kept", "f"), "--kept f: names the tokens to keep, and --k"),
    ],
)
def test_one_bad_setting_of_several_is_refused_before_anything_is_read(
    directories: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    assert message in refusal(capsys, command(directories, files, tmp_path / "out", *options))
    assert os.listdir(tmp_path) == []


def test_progress_tells_the_time_that_is_left_in_80_columns() -> None:
    stages, now = Stages(), [0.0]
    stages.bars.get_time = lambda: now[0]
    task = stages.bars.add_task("Calibrating: clusters and affinities", total=4096)

    def line() -> str:
        console = Console(file=io.StringIO(), width=80)
        with console.capture() as capture:
            console.print(stages.bars.get_renderable())
        return capture.get()

    assert line().endswith("0/4096 0:00:00, -:--:-- left\n")
    now[0] = 1800.0
    stages.bars.update(task, completed=1024)
    assert line().endswith("1024/4096 0:30:00, 1:30:00 left\n")
    assert line().startswith("Calibrating: clusters and affinities ")
    now[0] = 7200.0
    stages.bars.update(task, completed=4096)
    assert line().rstrip().endswith("4096/4096 2:00:00")
