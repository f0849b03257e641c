"""Where `calibrate` keeps what the models say of the text, from one run to the next."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal

from rdk_cuda.calibration.reading import Window
from rdk_cuda.calibration.record import record
from rdk_cuda.calibration.recording import Recording
from rdk_cuda.calibration.recording_file import (
    OtherRecordingError,
    RecordingError,
    recorded_temperatures,
)

from ..pair.errors import InputError
from ..pair.model_files import weight_files
from ..pair.pairs import Pair
from .progress import Stages
from .request import Request

OPTIONS = {
    "text": "the text (--text, --held-out, --positions)",
    "models": "the pair, or how it reads (--target, --drafter, --dtype, --draft-length)",
    "context": "--window",
    "samples": "the number of samples (--memory)",
    "seed": "--seed",
}
"""What the settings of a recording are on the command line."""


@dataclass(frozen=True)
class RecordingFile:
    """Where the models' view of the text is kept.

    Attributes:
        named: the user gave it a name, so that it stays when all is done.
        temperatures: those that it has or will have; at least those asked for.
    """

    path: Path
    named: bool
    temperatures: tuple[float, ...]

    @classmethod
    def of(cls, request: Request) -> RecordingFile:
        """The file that a request is for."""
        output, asked = request.output, tuple(dict.fromkeys(request.temperature))
        named = request.recording is not None
        path = output.with_name(f"{output.name}.recording.tmp")
        path = path if request.recording is None else Path(os.path.abspath(request.recording))
        file = cls(path, named, asked)
        if path.is_relative_to(output):
            raise InputError(
                f"{file}: is in --out {output}, which is written when all is done; name a file "
                "somewhere else"
            )
        if not path.parent.is_dir():
            raise InputError(f"{file}: {path.parent} is no directory; make it first")
        if not os.path.lexists(path):
            return file
        if not path.is_file():
            raise InputError(f"{file}: is not a regular file; {file.otherwise}")
        try:
            recorded = recorded_temperatures(path)
        except RecordingError as error:
            option = "--recording " if named else ""
            raise InputError(f"{option}{error.reason}; {file.otherwise}") from error
        if not set(asked) <= set(recorded):
            raise InputError(
                f"{file}: has the text at --temperature {in_words(recorded)}, not at "
                f"{in_words(t for t in asked if t not in recorded)}; give some of these, or "
                f"{file.otherwise}"
            )
        return cls(path, named, recorded)

    def __str__(self) -> str:
        return f"--recording {self.path}" if self.named else str(self.path)

    @property
    def otherwise(self) -> str:
        """What to do where this file is of no use."""
        return "name another file" if self.named else "move or delete it to begin anew"

    @property
    def size(self) -> str:
        """For example `1.1 GB`; empty where there is no file yet."""
        return decimal(self.path.stat().st_size) if self.path.exists() else ""

    def record(
        self, models: Pair, request: Request, windows: list[Window], stages: Stages
    ) -> Recording:
        """What the models say of the windows; where it was interrupted, it goes on."""
        said = self.announcement(request.memory)
        stages.console.print(said, soft_wrap=True, highlight=False, markup=False)
        try:
            return record(
                models.read(request.draft_length),
                windows,
                temperatures=self.temperatures,
                memory=int(request.memory * 2**30),
                context=request.window,
                seed=request.seed,
                state=self.path,
                models=models_of(models, request),
                each=stages.each,
            )
        except OtherRecordingError as error:
            different = "; ".join(
                f"{OPTIONS.get(name, name)} was {was!r} and is {now!r}"
                for name, (was, now) in error.different.items()
            )
            raise InputError(
                f"{self}: is of another run: {different}. Give the same to go on, or "
                f"{self.otherwise}"
            ) from error
        except ValueError as error:  # NaN, too little memory, an altered file
            raise InputError(str(error).removeprefix("record: ")) from error

    def announcement(self, memory: float) -> str:
        """Where it is, how large, and for how long."""
        size = f"{self.size} of it so far" if self.size else f"at most {memory:g} GiB"
        until = "kept" if self.named else "removed when all is done"
        return f"Calibrating: recording in {self.path}, {size}, {until} ..."

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Remove what was recorded where the same command would fail again.

        It stays after an interruption, a full disk or memory: the same command goes on from it.
        """
        begun = not (self.named or self.path.exists())
        try:
            yield
        except KeyboardInterrupt:
            said = f"{self.path} ({self.size}) has what was read; the same command goes on from it."
            raise KeyboardInterrupt(*[said] * bool(self.size)) from None
        except Exception as error:
            full = isinstance(error, (OSError, MemoryError, torch.OutOfMemoryError))
            if begun and not full:
                self.path.unlink(missing_ok=True)
            raise

    def close(self) -> str:
        """Remove it unless it has a name; says what became of it."""
        size = self.size
        if self.named:
            return (
                f"{self.path} ({size}) kept: with --recording and the same models and text, other "
                "shares need no further reading."
            )
        self.path.unlink()
        return f"{self.path} ({size}) removed; --recording FILE keeps it for other settings."


def in_words(temperatures: Iterable[float]) -> str:
    """As on the command line."""
    return " ".join(f"{temperature:g}" for temperature in temperatures)


def models_of(models: Pair, request: Request) -> str:
    """Which models they are, and how they read."""
    said = " and ".join(map(weights_of, (request.target, request.drafter)))
    if request.dtype != Request.dtype:
        said += f" in {request.dtype}"
    return said + models.how_read(request.draft_length)


def weights_of(directory: Path) -> str:
    """Which weights a model has: enough to notice that it was trained on."""
    files = [file.stat() for file in weight_files(directory)]
    changed = max((file.st_mtime_ns for file in files), default=0)
    return f"{directory.resolve()} ({sum(file.st_size for file in files)} bytes of {changed})"
