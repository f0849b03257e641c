"""Named tensors in a safetensors file: written whole or not at all, and checked when read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .whole_file import write_whole

__all__ = ["TensorFile", "system_errors", "to_bytes"]


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file's content, the same for the same arguments.

    safetensors itself writes metadata in an order that is another in each process.
    """
    import safetensors.torch

    content: bytes = safetensors.torch.save(dict(tensors), dict(metadata))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """An `OSError` for what safetensors raises its own error for, such as a full disk."""
    import safetensors

    try:
        yield
    except safetensors.SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


@dataclass(frozen=True)
class TensorFile:
    """One kind of file.

    Attributes:
        owner: the class whose `save` and `load` write and read such files.
        format, version: what their metadata says, a higher version for other contents.
        names: of the tensors, all of them.
        error: what is raised for a file that is not one of these, or not whole.
    """

    owner: str
    format: str
    version: int
    names: tuple[str, ...]
    error: type[ValueError]

    def write(self, path: Path, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """Writes the tensors and what the file is, whole or not at all."""
        said = {name: str(size) for name, size in sizes.items()}
        metadata = {"format": self.format, "format_version": str(self.version), **said}
        content = {name: tensors[name].cpu().contiguous() for name in self.names}
        self._safetensors()
        whole = to_bytes(content, metadata)
        write_whole(path, lambda beside: beside.write_bytes(whole))

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors in a file that says it is of this kind, and its metadata; values unchecked.

        Raises:
            ValueError: of type `error`, naming the file and what is wrong with it.
            OSError: if it cannot be opened.
        """
        safetensors = self._safetensors()
        try:
            with torch.device("cpu"), safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                self._check_header(path, metadata, set(file.keys()))
                return {name: file.get_tensor(name) for name in self.names}, metadata
        except safetensors.SafetensorError as error:
            raise self.error(
                f"{self.owner}.load: {path} is not a complete safetensors file ({error}); needs "
                f"one written by {self.owner}.save"
            ) from error

    def check_sizes(
        self, path: Path, metadata: Mapping[str, str], sizes: Mapping[str, int]
    ) -> None:
        """Refuses a file whose metadata names other sizes than its tensors have."""
        for name, size in sizes.items():
            if metadata.get(name) != str(size):
                raise self.error(
                    f"{self.owner}.load: {path} says {name} = {metadata.get(name)}, but its "
                    f"tensors have {size}; the file was altered"
                )

    def _check_header(self, path: Path, metadata: Mapping[str, str], found: set[str]) -> None:
        if metadata.get("format") != self.format:
            raise self.error(
                f"{self.owner}.load: {path} is a safetensors file of format "
                f"{metadata.get('format')!r}; needs {self.format!r}, as {self.owner}.save writes it"
            )
        version = metadata.get("format_version")
        if version != str(self.version):
            raise self.error(
                f"{self.owner}.load: {path} has format version {version!r}; this rdk_cuda reads "
                f"version {self.version} (a higher number needs a newer rdk_cuda)"
            )
        names = set(self.names)
        if found != names:
            raise self.error(
                f"{self.owner}.load: {path} lacks {sorted(names - found)} and has unknown "
                f"{sorted(found - names)}; needs the tensors {sorted(names)}"
            )

    def _safetensors(self) -> Any:
        """Imported when a file is, as `setup.py install` brings no dependencies."""
        try:
            import safetensors.torch
        except ImportError as error:
            raise ImportError(
                f"{self.owner} is kept in safetensors files ({error}): "
                "pip install safetensors numpy"
            ) from error
        return safetensors
