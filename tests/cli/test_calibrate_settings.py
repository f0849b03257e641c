"""Several shares and temperatures, and several calls, share one reading of the text."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from rdk_cuda.__main__ import main
from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned
from rdk_cuda.recipes.request import plain
from rdk_cuda.recipes.resume import weights_of

from .calibrating import Pair, command, count_reads, digests, in_one_thread, settings_of
from .conftest import Desk

KEEPS, TEMPERATURES = ("0.75", "0.8"), ("1", "0.7")
BOTH = ("--keep", *KEEPS, "--temperature", *TEMPERATURES)
NAMES = [f"keep-{keep}-temperature-{T}" for keep in KEEPS for T in TEMPERATURES]


@pytest.fixture(scope="module")
def several(directories: Pair, texts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`out` for each share with each temperature, and the recording that they share."""
    folder = tmp_path_factory.mktemp("several")
    options = (*BOTH, "--recording", folder / "recording")
    in_one_thread(command(directories, texts, folder / "out", *options))
    return folder


def test_each_combination_has_a_directory_of_its_own(several: Path, texts: list[Path]) -> None:
    assert sorted(path.name for path in several.iterdir()) == ["out", "recording"]
    assert sorted(path.name for path in (several / "out").iterdir()) == sorted(NAMES)
    for name in NAMES:
        settings = settings_of(several / "out" / name)
        assert name == f"keep-{settings['keep']}-temperature-{settings['temperature']:g}"
        assert [source["name"] for source in settings["held_out"]] == ["4.txt"]  # every fifth
        drafter, _ = load_pruned(several / "out" / name)
        assert drafter.vocabulary.draft_size == round(400 * settings["keep"])


def test_weights_of_every_kind_tell_models_apart(tmp_path: Path) -> None:
    known = {weights_of(tmp_path)}
    for name in ("model.safetensors", "pytorch_model.bin", "pytorch_model-1-of-2.bin", "q4.gguf"):
        (tmp_path / name).write_bytes(b"weights")
        known.add(weights_of(tmp_path))
    assert len(known) == 5


def test_each_temperature_has_a_name_of_its_own() -> None:
    assert list(map(plain, (1.0, 0.7, 0.70000001))) == ["1", "0.7", "0.70000001"]


def test_the_recording_serves_another_call_which_writes_the_same_to_the_bit(
    desk: Desk, several: Path
) -> None:
    """As does a call that reads the text itself; the same share twice is one."""
    recording = several / "recording"
    before = digests(recording)
    counted = count_reads(desk.patch)
    options = ("--keep", "0.8", "0.80", "--temperature", "0.7", ".7")
    argv = command(desk.pair, desk.texts, desk.out, *options)
    assert main([*argv, "--recording", str(recording)]) == 0
    assert counted == [1]  # two tokens, to learn the sizes
    captured = desk.capsys.readouterr()
    kept = captured.out.splitlines()[-1]
    assert re.match(rf"{recording} \(\d+\.\d MB\) kept: with --recording", kept)
    assert re.search(rf"recording in {recording}, \d+\.\d MB of it so far, kept", captured.err)
    assert digests(recording) == before
    expected = digests(several / "out" / "keep-0.8-temperature-0.7")
    assert digests(desk.out) == expected

    assert main([*argv, "--overwrite"]) == 0
    captured = desk.capsys.readouterr()
    file = desk.folder / "out.recording.tmp"
    assert re.search(rf"recording in {file}, at most [\d.]+ MB, removed when all", captured.err)
    assert re.search(rf"{file} \(\d+\.\d MB\) removed; --recording FILE keeps it", captured.out)
    assert os.listdir(desk.folder) == ["out"]
    assert digests(desk.out) == expected


def test_several_are_not_replaced_with_a_folder_of_mine_among_them(
    desk: Desk, several: Path
) -> None:
    shutil.copytree(several / "out", desk.out)
    (desk.out / "mine").touch()
    argv = command(desk.pair, desk.calibrated.text, desk.out, "--overwrite")
    assert "is not overwritten" in desk.refused(argv)
    assert sorted(os.listdir(desk.out)) == sorted([*NAMES, "mine"])


@pytest.mark.night
def test_an_interruption_between_two_of_them_leaves_no_directory(desk: Desk) -> None:
    written = []
    write = "rdk_cuda.drafter.PrunedDrafter.save"

    def interrupted(*arguments: object) -> None:
        written.append(arguments)
        if len(written) == 3:
            raise KeyboardInterrupt

    desk.patch.setattr(write, interrupted)
    argv = command(desk.pair, desk.texts, desk.out, *BOTH)
    assert main(argv) == 130
    assert os.listdir(desk.folder) == ["out.recording.tmp"]
    desk.patch.undo()
    assert main(argv) == 0
    assert os.listdir(desk.folder) == ["out"]
    assert sorted(os.listdir(desk.out)) == sorted(NAMES)


SAME = " ... Give the same to go on"
OTHER = [
    (
        0,
        "--temperature 0.7 0.5 2",
        "has the text at --temperature 1 0.7, not at 0.5 2; give some of these",
    ),
    (1, "", f"is of another run: the text (--text, --held-out, --positions) was{SAME}"),
    (0, "--seed 3", f"is of another run: --seed was 0 and is 3{SAME}"),
    (0, "--window 17", f"is of another run: --window was 16 and is 17{SAME}"),
]


@pytest.mark.parametrize(("text", "options", "message"), OTHER)
def test_a_recording_of_something_else_is_refused_with_the_difference(
    desk: Desk, several: Path, text: int, options: str, message: str
) -> None:
    recording = several / "recording"
    before = digests(recording)
    more = (*options.split(), "--recording", recording)
    answer = desk.refused(command(desk.pair, desk.texts[text:], desk.out, *more))
    for part in (f"--recording {recording}: {message}").split(" ... "):
        assert part in answer
    assert answer.endswith(", or name another folder")
    assert digests(recording) == before
    assert os.listdir(desk.folder) == []
