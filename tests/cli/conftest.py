"""Whole runs of the commands are costly, so the tests share a few of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from rdk_cuda.recipes.inputs import pairs

from .calibrating import Pair, command, in_one_thread, write_texts


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
