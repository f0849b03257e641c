"""Recordings on disk, finished or under way: safetensors, read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import system_errors, write_whole

__all__ = [
    "SAMPLE_LAYOUT",
    "Layout",
    "RecordingError",
    "check_values",
    "read",
    "read_about",
    "write",
]

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

_VERSION = 1
_BLOCK_ENTRIES = 1 << 22  # of a tensor that are checked at a time


class RecordingError(ValueError):
    """A file that is not the recording that it should be."""


def write(path: Path, form: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Writes a file whole, so that a kill at any moment leaves no half file there."""
    safetensors = _safetensors()
    metadata = {"format": form, "format_version": str(_VERSION), "about": json.dumps(about)}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with system_errors(path):
        write_whole(path, lambda beside: safetensors.torch.save_file(content, beside, metadata))


def read(path: Path, form: str, layout: Layout) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file with this layout, and what `write` was told about them.

    Shapes agree with each other and with the number of "temperatures"; values are unchecked.

    Raises:
        RecordingError: naming the file and what is wrong with it.
        OSError: if it cannot be opened.
    """
    with _opened(path, form, layout) as file:
        tensors = {name: file.get_tensor(name) for name in layout}
        about = _about(path, file.metadata())
    _check_layout(path, tensors, layout, {"temperatures": len(about["temperatures"])})
    return tensors, about


def read_about(path: Path, form: str, layout: Layout) -> dict[str, Any]:
    """What `write` was told about the tensors of a file, without them.

    Raises:
        RecordingError, OSError: as `read`.
    """
    with _opened(path, form, layout) as file:
        return _about(path, file.metadata())


@contextmanager
def _opened(path: Path, form: str, layout: Layout) -> Iterator[Any]:
    """The file, if it is one of this form."""
    safetensors = _safetensors()
    try:
        with torch.device("cpu"), safetensors.safe_open(path, framework="pt") as file:
            _check_header(path, form, file.metadata() or {}, set(file.keys()), set(layout))
            yield file
    except safetensors.SafetensorError as error:
        raise RecordingError(
            f"{path} is not a complete safetensors file ({error}); needs one of format {form!r}"
        ) from error


def _about(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(metadata["about"])
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

    Only the logits of unlikely tokens may be -inf; NaN and inf are nowhere.

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


def _check_header(
    path: Path, form: str, metadata: Mapping[str, str], names: set[str], needed: set[str]
) -> None:
    if metadata.get("format") != form:
        raise RecordingError(
            f"{path} is a safetensors file of format {metadata.get('format')!r}; needs {form!r}"
        )
    version = metadata.get("format_version")
    if version != str(_VERSION):
        raise RecordingError(
            f"{path} has format version {version!r}; this rdk_cuda reads version {_VERSION} (a "
            "higher number needs a newer rdk_cuda)"
        )
    if names != needed:
        raise RecordingError(
            f"{path} lacks {sorted(needed - names)} and has unknown {sorted(names - needed)}; "
            f"needs the tensors {sorted(needed)}"
        )


def _safetensors() -> Any:
    """Imported when a file is, as `setup.py install` brings no dependencies."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            f"recordings are kept in safetensors files ({error}): pip install safetensors numpy"
        ) from error
    return safetensors
