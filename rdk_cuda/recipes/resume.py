"""Where `calibrate` keeps what the models say of the text, from one run to the next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal

from .errors import InputError
from .inputs.loading import NATIVE, weight_files
from .record import record
from .recording import Recording
from .request import Request
from .shards import OtherRecordingError, RecordingError, recorded_temperatures
from .stages.stage import State

OPTIONS = {
    "text": "the text (--text, --held-out, --positions)",
    "models": "the pair, or how it reads (--target, --drafter, --dtype, --draft-length)",
    "context": "--window",
    "samples": "the number of samples (--memory)",
    "seed": "--seed",
}
"""The settings of a recording as options of the command line."""


@dataclass(frozen=True)
class RecordingPlace:
    """The folder of a recording.

    Attributes:
        named: the user gave it a name, so that it stays when all is done.
        temperatures: those that it has or will have; at least those asked for.
    """

    path: Path
    named: bool
    temperatures: tuple[float, ...]

    @classmethod
    def of(cls, request: Request) -> RecordingPlace:
        output, asked = request.output, tuple(dict.fromkeys(request.temperature))
        path = output.with_name(f"{output.name}.recording.tmp")
        path = path if request.recording is None else Path(os.path.abspath(request.recording))
        place = cls(path, request.recording is not None, asked)
        if path.is_relative_to(output):
            raise InputError(
                f"{place}: is in --out {output}, which is written when all is done; name a folder "
                "somewhere else"
            )
        if not path.parent.is_dir():
            raise InputError(f"{place}: {path.parent} is no directory; make it first")
        if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
            return place
        try:
            recorded = recorded_temperatures(path)
        except RecordingError as error:
            option = "--recording " if place.named else ""
            raise InputError(f"{option}{error.reason}; {place.otherwise}") from error
        except OSError as error:
            reason = f"is no recording ({error.strerror})"
            raise InputError(f"{place}: {reason}; {place.otherwise}") from error
        if not set(asked) <= set(recorded):
            raise InputError(
                f"{place}: has the text at --temperature {in_words(recorded)}, not at "
                f"{in_words([t for t in asked if t not in recorded])}; give some of these, or "
                f"{place.otherwise}"
            )
        return cls(path, place.named, recorded)

    def __str__(self) -> str:
        return f"--recording {self.path}" if self.named else str(self.path)

    @property
    def otherwise(self) -> str:
        return "name another folder" if self.named else "move or delete it to begin anew"

    @property
    def size(self) -> str:
        """For example `1.1 GB`; empty where nothing was read yet."""
        files = list(self.path.glob("*.safetensors"))
        return decimal(sum(file.stat().st_size for file in files)) if len(files) > 1 else ""

    def record(self, state: State[Request]) -> Recording:
        """Record what the models say of the text, from where it was interrupted."""
        models, request = state.models, state.request
        windows = state.text.windows(request.positions)
        positions = sum(len(window.ids) for window in windows)
        most = min(int(request.memory * 2**30), 4 * models.vocabulary_size * positions)
        so_far = f"{self.size} of it so far" if self.size else f"at most {decimal(most)}"
        until = "kept" if self.named else "removed when all is done"
        state.say(f"Calibrating: recording in {self.path}, {so_far}, {until} ...")
        names = " and ".join(map(weights_of, (request.target, request.drafter)))
        names += f" in {request.dtype}" if request.dtype != Request.dtype else ""
        try:
            return record(
                models.read(request.draft_length),
                windows,
                temperatures=self.temperatures,
                memory=int(request.memory * 2**30),
                context=request.window,
                seed=request.seed,
                state=self.path,
                models=names + models.how_read(request.draft_length),
                each=state.each,
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
        except ValueError as error:  # NaN, too little memory, altered files
            raise InputError(str(error).removeprefix("record: ")) from error

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Remove what was recorded where the same command would fail again.

        It stays after an interruption, a full disk or memory: the same command goes on from it.
        """
        begun = not (self.named or self.path.exists())
        try:
            yield
        except BaseException as error:
            passing = KeyboardInterrupt, OSError, MemoryError, torch.OutOfMemoryError
            if begun and not (self.size and isinstance(error, passing)):
                shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt) and self.size:
                said = f"{self.path} ({self.size}) has what was read; the same command goes on"
                raise KeyboardInterrupt(f"{said} from it.") from None
            raise

    def close(self) -> str:
        """Remove it unless it has a name; says what became of it."""
        size = self.size
        if self.named:
            return (
                f"{self.path} ({size}) kept: with --recording and the same models and text, other "
                "shares need no further reading."
            )
        shutil.rmtree(self.path.resolve())
        self.path.unlink(missing_ok=True)  # a link to it
        return f"{self.path} ({size}) removed; --recording FILE keeps it for other settings."


def in_words(temperatures: Sequence[float]) -> str:
    return " ".join(f"{temperature:g}" for temperature in temperatures)


def weights_of(directory: Path) -> str:
    if directory == NATIVE:
        return str(directory)
    files = [file.stat() for file in weight_files(directory)]
    changed = max((file.st_mtime_ns for file in files), default=0)
    return f"{directory.resolve()} ({sum(file.st_size for file in files)} bytes of {changed})"
