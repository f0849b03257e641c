"""Whole runs of the commands are costly, so the tests share a few of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rdk_cuda.__main__ import main
from rdk_cuda.recipes.inputs import pairs

from .calibrating import Pair, command, in_one_thread, refusal, write_texts


@pytest.fixture(autouse=True)
def _quick(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are tiny, and their times do not matter."""
    monkeypatch.setattr(pairs, "TIMING_SECONDS", 0.0)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six files, not to be changed."""
    return write_texts(tmp_path_factory.mktemp("texts") / "text", count=6)


class Calibrated(NamedTuple):
    """What was calibrated on the first four of the texts, with the last two held out."""

    folder: Path
    text: list[Path]
    held_out: list[Path]

    @property
    def saved(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="session")
def calibrated(
    directories: Pair, texts: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Calibrated:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("calibrated")
    in_one_thread(command(directories, texts[:4], folder / "out", "--held-out", *texts[4:]))
    return Calibrated(folder, texts[:4], texts[4:])


class Desk(NamedTuple):
    """Most of what a test of a command needs, and a folder of its own to write to."""

    pair: Pair
    texts: list[Path]
    folder: Path
    capsys: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch
    request: pytest.FixtureRequest

    @property
    def calibrated(self) -> Calibrated:
        """Made when a test first asks for it."""
        made: Calibrated = self.request.getfixturevalue("calibrated")
        return made

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def refused(self, argv: Sequence[str]) -> str:
        return refusal(self.capsys, argv)

    def evaluate(
        self, saved: Path, *options: object, target: Path | None = None, text: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """What `evaluate` writes, of the last two texts."""
        given = ("--target", target or self.pair[0], "--text", *(text or self.texts[4:]))
        output = self.folder / "evaluation"
        argv = (saved, *given, "--output", output, *options)
        assert main(["evaluate", *map(str, argv)]) == 0
        content: dict[str, Any] = json.loads((output / "evaluation.json").read_text())
        return content

    def printed(self) -> str:
        """On standard output since the last time, in one line."""
        return " ".join(self.capsys.readouterr().out.split())


@pytest.fixture
def desk(
    directories: Pair,
    texts: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Desk:
    return Desk(directories, texts, tmp_path, capsys, monkeypatch, request)
