"""The file from which an interrupted recording goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .file import SAMPLE_LAYOUT, RecordingError, RecordingFormat, check_values
from .reservoir import random_keys
from .running import RunningRecording

__all__ = ["OtherRecordingError", "RecordingState", "recorded_temperatures"]

_FORMAT = RecordingFormat(
    "RecordingState",
    "rdk_cuda.recording_state",
    {
        "probs": (torch.float64, ("temperatures", "V_t")),
        "squares": (torch.float64, ("temperatures", "V_t")),
        "counts": (torch.int64, ("V_t",)),
        "moment": (torch.float64, ("d", "d")),
        "keys": (torch.int64, ("n",)),
        "positions": (torch.int64, ("n",)),
        **SAMPLE_LAYOUT,
    },
)
_SLOWDOWN = 20  # between two writes, at least this many times what the last one took


class OtherRecordingError(RecordingError):
    """A file of a recording with other arguments.

    Attributes:
        different: by the name of each setting that differs, what it was and what it is.
    """

    def __init__(self, path: Path, different: Mapping[str, tuple[Any, Any]]) -> None:
        said = "; ".join(f"{name} was {a!r} and is {b!r}" for name, (a, b) in different.items())
        super().__init__(
            f"record: {path} is the state of another recording: {said}. Give the same arguments to "
            "go on, or delete the file to begin anew"
        )
        self.different = different


def recorded_temperatures(path: Path) -> tuple[float, ...]:
    """The temperatures of a recording that goes on from a file; only its header is read.

    Raises:
        RecordingError: a file that is damaged, or of another kind.
        OSError: if it cannot be opened.
    """
    return tuple(_FORMAT.read_about(path)["temperatures"])


class RecordingState:
    """Saves a running recording to a file, with the settings that identify it.

    Args:
        path: of the file, which is written whole or not at all.
        running: the recording to save.
        every: seconds between two writes, at least.
        text, models: what is recorded, in words.

    Raises:
        ValueError: a path that could not be written to when the time comes.
    """

    def __init__(
        self, path: Path, running: RunningRecording, every: float, *, text: str, models: str
    ) -> None:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"record: state is {path}; needs a file in a directory that exists")
        plan = running.plan
        self.path, self.running, self.every = path, running, every
        self.settings = {
            "text": text,
            "models": models,
            "V_t": plan.target_size,
            "d": plan.width,
            "temperatures": list(plan.temperatures),
            "samples": plan.samples,
            "likeliest": plan.likeliest,
            "context": plan.context,
            "seed": running.seed,
        }
        self._next = time.monotonic() + every

    def batch_was_added(self, *, last: bool) -> None:
        """Writes the file if it is time to, and after the last batch."""
        started = time.monotonic()
        if last or started >= self._next:
            about = {**self.settings, "windows_read": self.running.windows}
            _FORMAT.write(self.path, self.running.tensors(), about)
            ended = time.monotonic()
            self._next = ended + max(self.every, _SLOWDOWN * (ended - started))

    def go_on(self, lengths: Sequence[int]) -> None:
        """Brings the running recording to where the file is, if there is one.

        Args:
            lengths: of all windows.

        Raises:
            RecordingError: a file that is damaged, or of another recording.
        """
        if not self.path.exists():
            return
        try:
            tensors, about = _FORMAT.read(self.path)
        except RecordingError as error:
            raise RecordingError(f"record: {error.reason}; delete it to begin anew") from error
        different = {
            name: (about.get(name), now)
            for name, now in self.settings.items()
            if about.get(name) != now
        }
        if different:
            raise OtherRecordingError(self.path, different)
        self._check(tensors, about, lengths)
        self.running.restore(tensors, about["windows_read"])

    def _check(
        self, tensors: Mapping[str, Tensor], about: Mapping[str, Any], lengths: Sequence[int]
    ) -> None:
        plan, windows = self.running.plan, about.get("windows_read")
        altered = f"record: {self.path} was altered; delete it to begin anew"
        if not isinstance(windows, int) or not 0 <= windows <= len(lengths):
            raise RecordingError(f"{altered} (it is {windows} windows far)")
        read, places = sum(lengths[:windows]), tensors["positions"]
        kept = min(plan.samples, read)
        needed = {"probs": plan.target_size, "moment": plan.width, "keys": kept}
        needed |= {"targets": plan.likeliest, "contexts": plan.context}
        for name, size in needed.items():
            if tensors[name].shape[-1] != size:
                raise RecordingError(
                    f"{altered} ({name} has shape {list(tensors[name].shape)}; needs [..., {size}])"
                )
        check_values(self.path, tensors, plan.target_size)
        if int(tensors["counts"].sum()) != read:
            raise RecordingError(f"{altered} (counts do not sum to the {read} tokens read)")
        if bool((places >= read).any()) or len(places.unique()) != kept:
            raise RecordingError(f"{altered} (positions are not {kept} of the {read} read)")
        if not torch.equal(tensors["keys"], random_keys(self.running.seed, places)):
            raise RecordingError(f"{altered} (keys are not those of its positions)")
