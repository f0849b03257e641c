"""The folder of a recording, finished or under way: its sums, and a file for each batch read.

    sums.safetensors                 sums over the batches so far, how many, and of which recording
    samples-00000.safetensors, ...   states and logits at the positions that are kept of each batch

Logits are by token, 4 bytes each, unless those of the likeliest with their ids take less.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import TensorFile, json_of, write_whole

SUMS = "sums.safetensors"
_SUMS = ("probs", "counts", "moment")
_ROWS = 64  # that are sorted at a time
_ALWAYS, _LIKELIEST = ("hidden", "log_normalizers"), ("targets", "target_logits")


class RecordingError(ValueError):
    """A folder that is not of the recording that it should be."""

    @property
    def reason(self) -> str:
        """The message without the name of the function, for the command line."""
        return re.sub(r"^(\w+\.load|record): ", "", str(self))


_FILE = TensorFile("Recording", "rdk_cuda.recording", 3, _SUMS, RecordingError)
_SAMPLES = TensorFile(
    *("Recording", "rdk_cuda.recording.samples", 2, _ALWAYS, RecordingError),
    optional=("logits", *_LIKELIEST),
)


class OtherRecordingError(RecordingError):
    """A folder of a recording with other arguments.

    Attributes:
        different: by the name of each setting that differs, its value there and here.
    """

    def __init__(self, path: Path, different: Mapping[str, tuple[Any, Any]]) -> None:
        said = "; ".join(f"{name} was {a!r} and is {b!r}" for name, (a, b) in different.items())
        super().__init__(
            f"record: {path} is the state of another recording: {said}. Give the same arguments to "
            "go on, or delete it to begin anew"
        )
        self.different = different


def recorded_temperatures(path: Path) -> tuple[float, ...]:
    return tuple(_about(path)["temperatures"])


def _about(path: Path) -> dict[str, Any]:
    if path.is_file():
        raise RecordingError(
            f"record: {path} is a file; needs a folder (an earlier rdk_cuda wrote files: delete "
            "it, and the same command reads the text anew)"
        )
    with _FILE.opened(path / SUMS) as (_, metadata):
        try:
            about: dict[str, Any] = json_of(metadata["about"])
            times = about["temperatures"]
            sound = all(isinstance(one, float) and 0 < one < float("inf") for one in times)
            if not sound or not times or len(set(times)) < len(times):
                raise ValueError(f"its temperatures are {times}")
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(
                f"record: {path} does not tell at which temperatures it was recorded ({error}); it "
                "was altered"
            ) from error
    return about


class Shards:
    """Saves a running recording after each batch, and goes on from there.

    Args:
        path: of the folder, in one that exists.
        settings: identify the recording, in JSON.
        rows_of: of windows, the rows of their samples.
        windows: how many there are.
        sums, rows: what is saved and filled in.

    Attributes:
        read: behind which window each shard ends, of those that are saved.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        rows_of: Callable[[range], slice],
        windows: int,
        sums: Mapping[str, Tensor],
        rows: Mapping[str, Tensor],
    ) -> None:
        if not path.absolute().parent.is_dir():
            raise ValueError(f"record: state is {path}; needs a folder in one that exists")
        self.path, self.sums, self.rows = path, sums, rows
        self.rows_of, self.windows, self.read = rows_of, windows, list[int]()
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.size = int(settings["target_size"])
        self.by_token = 2 * rows["targets"].shape[1] > self.size

    def resume(self) -> int:
        """Fill in what was read, and return how many windows that were; begin anew without any."""
        if not (self.path / SUMS).exists() and not self.path.is_file():
            self._begin()
            return 0
        try:
            self._resume()
        except OtherRecordingError:
            raise
        except (RecordingError, FileNotFoundError) as error:
            reason = error.reason if isinstance(error, RecordingError) else error
            raise RecordingError(f"record: {reason}; delete it to begin anew") from error
        return self.read[-1] if self.read else 0

    def add(self, batch: range) -> None:
        """Save the next windows: their samples first, so that no sums stand without them."""
        rows = self.rows_of(batch)
        own = {name: tensor[rows] for name, tensor in self.rows.items()}
        if self.by_token:
            logits = torch.full(
                (len(own["hidden"]), self.size), -torch.inf, dtype=torch.float32, device="cpu"
            )
            own["logits"] = logits.scatter_(1, own.pop("targets").long(), own.pop("target_logits"))
        names = (*_ALWAYS, *(("logits",) if self.by_token else _LIKELIEST))
        samples = {name: own[name] for name in names}
        _write(self._shard(len(self.read)), _SAMPLES, samples, self._said_of(batch))
        self.read.append(batch.stop)
        self._write_sums()

    def _begin(self) -> None:
        needed, free = self.bytes, shutil.disk_usage(self.path.parent).free
        if needed > free:
            said = f"No space left on device: needs {needed:,} bytes, has {free:,}"
            raise OSError(errno.ENOSPC, said, str(self.path))
        self.path.mkdir(exist_ok=True)
        self._write_sums()

    @property
    def bytes(self) -> int:
        """The size of the finished recording on the disk."""
        states, likeliest = self.rows["hidden"], self.rows["targets"].shape[1]
        each = 4 * (min(self.size, 2 * likeliest) + states.shape[1])
        return sum(total.nbytes for total in self.sums.values()) + each * len(states)

    def _resume(self) -> None:
        about = _about(self.path)
        pairs = {name: (about.get(name), now) for name, now in self.settings.items()}
        if different := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            raise OtherRecordingError(self.path, different)
        said: Any = about.get("read")
        read: list[int] = said if isinstance(said, list) else [0]  # which is none
        ends = [0, *read]
        sound = all(isinstance(end, int) for end in ends) and ends[-1] <= self.windows
        if not sound or any(begin >= end for begin, end in pairwise(ends)):
            raise RecordingError(f"record: {self.path} was altered (it has {said!r:.40} windows)")
        self._fill(self.path / SUMS, _FILE, dict(self.sums))
        for number, batch in enumerate(map(range, ends, read)):
            rows = {name: tensor[self.rows_of(batch)] for name, tensor in self.rows.items()}
            owner = self._said_of(batch)
            content = {name: rows[name] for name in _ALWAYS}
            if self.by_token:
                logits = torch.empty(
                    len(rows["hidden"]), self.size, dtype=torch.float32, device="cpu"
                )
                self._fill(self._shard(number), _SAMPLES, {**content, "logits": logits}, owner)
                parts = (rows[name].split(_ROWS) for name in _LIKELIEST)
                for block, ids, sorted_logits in zip(logits.split(_ROWS), *parts, strict=True):
                    values, order = block.sort(dim=1, descending=True, stable=True)
                    ids.copy_(order[:, : ids.shape[1]])
                    sorted_logits.copy_(values[:, : ids.shape[1]])
            else:
                content |= {name: rows[name] for name in _LIKELIEST}
                self._fill(self._shard(number), _SAMPLES, content, owner)
        self.read = read

    def _fill(
        self,
        path: Path,
        kind: TensorFile,
        into: Mapping[str, Tensor],
        said: Mapping[str, str] | None = None,
    ) -> None:
        """Copy a file's tensors, each of its shape and with numbers that it may have."""
        found, metadata = kind.read(path)
        if said is not None and said.items() - metadata.items():
            raise RecordingError(f"record: {path} is of another recording, or of other windows")
        for name, needed in into.items():
            tensor = found.get(name)
            if tensor is None or (tensor.shape, tensor.dtype) != (needed.shape, needed.dtype):
                got = None if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise RecordingError(
                    f"record: {path}: {name} is {got}; needs {needed.dtype} {list(needed.shape)}; "
                    "the file was altered"
                )
            low = 0 if name in ("targets", "probs", "counts") else -torch.inf
            high = self.size - 1 if name == "targets" else torch.inf
            sound = (tensor >= low) & (tensor <= high)  # false for NaN
            if tensor.is_floating_point():
                sound &= tensor != torch.inf
                sound &= (tensor != -torch.inf) | (name in ("logits", "target_logits"))
            if not bool(sound.all()):
                value = tensor[~sound][0].item()
                raise RecordingError(
                    f"record: {path}: {name} has the value {value}; the file was altered"
                )
            needed.copy_(tensor)

    def _shard(self, number: int) -> Path:
        return self.path / f"samples-{number:05}.safetensors"

    def _said_of(self, batch: range) -> dict[str, str]:
        """Name the recording and the windows that a shard belongs to."""
        return {"about": json.dumps({**self.settings, "windows": [batch.start, batch.stop]})}

    def _write_sums(self) -> None:
        about = json.dumps({**self.settings, "read": self.read})
        _write(self.path / SUMS, _FILE, self.sums, {"about": about})


def _write(
    path: Path, kind: TensorFile, tensors: Mapping[str, Tensor], facts: Mapping[str, str]
) -> None:
    """As `TensorFile.write`, without a copy of the tensors: they may be as large as a batch."""
    safetensors = kind.safetensors()
    metadata = {"format": kind.format, "format_version": str(kind.version), **facts}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda place: safetensors.torch.save_file(content, place, metadata))
