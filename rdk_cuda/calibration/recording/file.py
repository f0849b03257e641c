"""Recordings on disk, finished or under way: safetensors files, read with suspicion."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import TensorFile, json_of, system_errors, write_whole

__all__ = ["SAMPLE_LAYOUT", "Layout", "RecordingError", "RecordingFormat", "check_values"]

Layout = Mapping[str, tuple[torch.dtype, tuple[str, ...]]]
"""The tensors that a file has: their dtypes, and names for their sizes."""

SAMPLE_LAYOUT: Layout = {
    "hidden": (torch.float32, ("n", "d")),
    "targets": (torch.int32, ("n", "m")),
    "target_logits": (torch.float32, ("n", "m")),
    "log_normalizers": (torch.float32, ("n", "temperatures")),
    "contexts": (torch.int32, ("n", "w")),
    "documents": (torch.int64, ("n",)),
}

_BLOCK_ENTRIES = 1 << 22  # of a tensor that are checked at a time


class RecordingError(ValueError):
    """A file that is not the recording that it should be."""

    @property
    def reason(self) -> str:
        """The message without the name of the function, for the command line."""
        return re.sub(r"^(\w+\.load|record): ", "", str(self))


@dataclass(frozen=True)
class RecordingFormat:
    """One kind of recording file, with facts about it as JSON.

    Attributes:
        owner: the class that is kept in such files.
        name: what the file's metadata calls the format.
    """

    owner: str
    name: str
    layout: Layout

    @property
    def _file(self) -> TensorFile:
        return TensorFile(self.owner, self.name, 1, tuple(self.layout), RecordingError)

    def write(self, path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a file whole, or not at all, and without a copy of the tensors."""
        safetensors = self._file.safetensors()
        metadata = {"format": self.name, "format_version": "1", "about": json.dumps(about)}
        content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with system_errors(path):
            write_whole(path, lambda place: safetensors.torch.save_file(content, place, metadata))

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a file with this layout, and what `write` was told about them.

        Shapes agree with each other and with the number of "temperatures"; values are unchecked.

        Raises:
            RecordingError: naming the file and what is wrong with it.
            OSError: if it cannot be opened.
        """
        with self._file.opened(path) as (file, metadata):
            tensors = {name: file.get_tensor(name) for name in self.layout}
        about = _about(path, metadata)
        _check_layout(path, tensors, self.layout, {"temperatures": len(about["temperatures"])})
        return tensors, about

    def read_about(self, path: Path) -> dict[str, Any]:
        """What `write` was told about the tensors, of which none is read; errors as `read`."""
        with self._file.opened(path) as (_, metadata):
            return _about(path, metadata)


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


def check_values(path: Path, tensors: Mapping[str, Tensor], target_size: int) -> None:
    """Ids within the vocabulary, finite numbers, probabilities and counts not negative.

    Only the logits of unlikely tokens may be -inf; there are no NaN and no inf.

    Raises:
        RecordingError: naming the file, the tensor and the first bad value.
    """
    lowest_id = {"targets": 0, "contexts": -1}
    for name, tensor in tensors.items():
        low: float = -torch.inf
        high: float = torch.inf
        if name in lowest_id:
            low, high = lowest_id[name], target_size - 1
        elif name in ("mean_probs", "mean_squares", "probs", "squares", "counts", "positions"):
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


def _check_layout(
    path: Path, tensors: Mapping[str, Tensor], layout: Layout, sizes: dict[str, int]
) -> None:
    for name, (dtype, shape) in layout.items():
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
