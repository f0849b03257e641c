"""What `python -m rdk_cuda` says of itself, and that it speaks of options, not of functions."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("rich")

from examples.demo.__main__ import main as demo
from rdk_cuda.__main__ import main

from .calibrating import command, refusal, write_texts

COMMANDS = ("calibrate", "evaluate", "inspect")


def test_alone_it_lists_all_commands_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for name in COMMANDS:
        assert re.search(rf"^ +{name}\s+\w+ \w+", captured.err, re.MULTILINE), captured.err


def test_keep_is_described_in_the_same_words_by_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    described = set()
    for asked, default in (
        (lambda: demo(["--help"]), "0.25 0.0625"),
        (lambda: main(["calibrate", "--help"]), "0.25"),
    ):
        with pytest.raises(SystemExit):
            asked()
        text = " ".join(capsys.readouterr().out.split())
        match = re.search(r"--keep SHARE \[SHARE \.\.\.\] (.*?) \(([^()]*)\) --", text)
        assert match, text
        assert match[2] == default
        described.add(match[1])
    assert len(described) == 1


def without_settings(saved: Path) -> None:
    (saved / "calibration.json").unlink()


def without_the_pruned_drafter(saved: Path) -> None:
    (saved / "pruned_drafter.safetensors").unlink()


def of_another_format(saved: Path) -> None:
    (saved / "calibration.json").write_text('{"format": "other"}')


def with_a_cut_file(saved: Path) -> None:
    file = saved / "pruned_drafter.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


@pytest.fixture(scope="module")
def calibrated(
    one_thread: None, directories: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    files = write_texts(folder / "text")
    assert main(command(directories, files, folder / "saved")) == 0
    return folder


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        without_settings,
        without_the_pruned_drafter,
        of_another_format,
        with_a_cut_file,
    ],
)
def test_what_is_no_saved_drafter_is_refused_in_words_of_the_command_line(
    calibrated: Path,
    directories: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(calibrated / "saved", saved)
    spoil(saved)
    text = ("--text", str(calibrated / "text" / "0.txt"), "--output", str(tmp_path / "output"))
    commands = [["evaluate", str(saved), "--target", str(directories[0]), *text]]
    if saved.exists():
        commands += [["inspect", str(saved)]]
    for argv in commands:
        answer = refusal(capsys, argv)
        assert str(saved) in answer
        assert not re.search("load_drafter|save_drafter", answer), answer


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_an_output_that_cannot_be_replaced_is_refused_in_words_of_the_command_line(
    calibrated: Path,
    directories: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    (tmp_path / "mine").touch()
    text = sorted((calibrated / "text").iterdir())
    answer = refusal(capsys, command(directories, text, tmp_path, *options))
    assert f"--out {tmp_path}" in answer
    assert not re.search("load_drafter|save_drafter", answer), answer
