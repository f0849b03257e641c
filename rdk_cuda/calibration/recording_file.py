"""The file of a recording, finished or under way: safetensors, and read with suspicion."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import TensorFile, json_of, write_whole
from .running_recording import RunningRecording, random_keys

_LAYOUT = {
    "probs": (torch.float64, ("temperatures", "V_t")),
    "squares": (torch.float64, ("temperatures", "V_t")),
    "counts": (torch.int64, ("V_t",)),
    "moment": (torch.float64, ("d", "d")),
    "keys": (torch.int64, ("n",)),
    "positions": (torch.int64, ("n",)),
    "hidden": (torch.float32, ("n", "d")),
    "targets": (torch.int32, ("n", "m")),
    "target_logits": (torch.float32, ("n", "m")),
    "log_normalizers": (torch.float32, ("n", "temperatures")),
    "contexts": (torch.int32, ("n", "w")),
    "documents": (torch.int64, ("n",)),
}
"""The tensors of the file: their dtypes, and names for their sizes."""

_BLOCK_ENTRIES = 1 << 22  # of a tensor that are checked at a time
_SLOWDOWN = 20  # between two writes, at least this many times what the last one took


class RecordingError(ValueError):
    """A file that is not the recording that it should be."""

    @property
    def reason(self) -> str:
        """The message without the name of the function, for the command line."""
        return re.sub(r"^(\w+\.load|record): ", "", str(self))


_FILE = TensorFile("RecordingState", "rdk_cuda.recording_state", 1, tuple(_LAYOUT), RecordingError)


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
    """The temperatures of a recording that goes on from a file; only its header is read."""
    with _FILE.opened(path) as (_, metadata):
        return tuple(_about(path, metadata)["temperatures"])


class RecordingState:
    """Saves a running recording to a file, with the settings that identify it.

    Args:
        path: of the file, which is written atomically.
        running: the recording to save.
        every: seconds between two writes, at least.
        text, models: what is recorded, in words.
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
            write(self.path, self.running.tensors(), about)
            ended = time.monotonic()
            self._next = ended + max(self.every, _SLOWDOWN * (ended - started))

    def go_on(self, lengths: Sequence[int]) -> None:
        """Brings the running recording to where the file is, if there is one.

        Args:
            lengths: of all windows.
        """
        if not self.path.exists():
            return
        try:
            tensors, about = read(self.path)
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
        _check_values(self.path, tensors, plan.target_size)
        if int(tensors["counts"].sum()) != read:
            raise RecordingError(f"{altered} (counts do not sum to the {read} tokens read)")
        if bool((places >= read).any()) or len(places.unique()) != kept:
            raise RecordingError(f"{altered} (positions are not {kept} of the {read} read)")
        if not torch.equal(tensors["keys"], random_keys(self.running.seed, places)):
            raise RecordingError(f"{altered} (keys are not those of its positions)")


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a file atomically, and without a copy of the tensors."""
    safetensors = _FILE.safetensors()
    metadata = {"format": _FILE.format, "format_version": "1", "about": json.dumps(about)}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda place: safetensors.torch.save_file(content, place, metadata))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and what `write` was told about them.

    Shapes agree with each other and with the number of "temperatures"; values are unchecked.
    """
    with _FILE.opened(path) as (file, metadata):
        tensors = {name: file.get_tensor(name) for name in _LAYOUT}
    about = _about(path, metadata)
    _check_layout(path, tensors, {"temperatures": len(about["temperatures"])})
    return tensors, about


def _about(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json_of(metadata["about"])
        temperatures = about["temperatures"]
        sound = all(isinstance(one, float) and 0 < one < float("inf") for one in temperatures)
        if not sound or not temperatures or len(set(temperatures)) < len(temperatures):
            raise ValueError(f"its temperatures are {temperatures}")
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(
            f"{path} does not tell at which temperatures it was recorded ({error}); the file was "
            "altered"
        ) from error
    return about


def _check_values(path: Path, tensors: Mapping[str, Tensor], target_size: int) -> None:
    """Ids within the vocabulary, finite numbers, probabilities and counts not negative.

    Only the logits of unlikely tokens may be -inf; there are no NaN and no inf.
    """
    lowest_id = {"targets": 0, "contexts": -1}
    for name, tensor in tensors.items():
        low: float = -torch.inf
        high: float = torch.inf
        if name in lowest_id:
            low, high = lowest_id[name], target_size - 1
        elif name in ("probs", "squares", "counts", "positions"):
            low = 0
        for block in tensor.flatten().split(_BLOCK_ENTRIES):
            sound = (block >= low) & (block <= high)  # false for NaN
            if block.is_floating_point():
                sound &= block != torch.inf
                if name != "target_logits":
                    sound &= block != -torch.inf
            if not bool(sound.all()):
                value = block[~sound][0].item()
                raise RecordingError(
                    f"{path}: {name} has the value {value}; needs "
                    + (f"values in [{low}, {high}]" if high < torch.inf else "finite values")
                    + (", none negative" if low == 0 and high == torch.inf else "")
                    + "; the file was altered"
                )


def _check_layout(path: Path, tensors: Mapping[str, Tensor], sizes: dict[str, int]) -> None:
    for name, (dtype, shape) in _LAYOUT.items():
        tensor = tensors[name]
        needed = [sizes.get(size, size) for size in shape]
        if tensor.dtype != dtype or tensor.dim() != len(shape):
            raise RecordingError(
                f"{path}: {name} is {tensor.dtype} {list(tensor.shape)}; needs {dtype} "
                f"[{', '.join(shape)}]"
            )
        for size, length in zip(shape, tensor.shape, strict=True):
            if sizes.setdefault(size, length) != length:
                raise RecordingError(
                    f"{path}: {name} has shape {list(tensor.shape)}; needs "
                    f"[{', '.join(map(str, needed))}], as the rest of the file has it"
                )
