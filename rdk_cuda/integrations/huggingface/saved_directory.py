"""A saved drafter's directory, written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...files import name_beside, sync, system_errors

__all__ = ["SETTINGS", "SavedDrafterError", "refuse_existing", "written_whole"]

SETTINGS = "calibration.json"
"""The file that tells a saved drafter from any other directory."""


class SavedDrafterError(ValueError):
    """A directory, or what should become one, that is not a drafter. Says which file and why."""

    @property
    def reason(self) -> str:
        """The message without the function that it comes from, for the command line."""
        return str(self).removeprefix("load_drafter: ").removeprefix("save_drafter: ")


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Only nothing, an empty directory or saved drafters are ever replaced, and only if asked.

    Raises:
        SavedDrafterError: `path` exists and may not be replaced.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise SavedDrafterError(
            f"save_drafter: {path} exists; name another directory, or allow overwriting it"
        )
    ours = path.is_dir() and not path.is_symlink()
    if not ours or not (
        (path / SETTINGS).is_file() or all((each / SETTINGS).is_file() for each in path.iterdir())
    ):
        raise SavedDrafterError(
            f"save_drafter: {path} is not a saved drafter (it has no {SETTINGS}) and is not "
            "overwritten; name another directory"
        )


@contextmanager
def written_whole(path: Path, overwrite: bool) -> Iterator[Path]:
    """A hidden directory beside `path`, renamed to it at the end; gone if anything fails."""
    refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as unfinished:
        with system_errors(path):
            yield unfinished
        _follow_umask(unfinished)
        for written in (*unfinished.rglob("*"), unfinished):
            sync(written)
        refuse_existing(path, overwrite)
        _replace(path, unfinished)


def _follow_umask(directory: Path) -> None:
    """Gives all files the mode of a new one: safetensors makes its own readable by none else."""
    probe = directory / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in directory.rglob("*"):
        if file.is_file():
            file.chmod(mode)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A hidden directory in the same folder, which is gone afterwards unless it was renamed."""
    unfinished = name_beside(path)
    unfinished.mkdir()
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _replace(path: Path, new: Path) -> None:
    """Rename `new` to `path`; what was there stays until then, and again if that fails."""
    if not path.exists():
        new.rename(path)
        return
    with _beside(path) as attic:
        old = path.rename(attic / path.name)
        try:
            new.rename(path)
        except BaseException:
            old.rename(path)
            raise
