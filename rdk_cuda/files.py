"""Atomic writes and validated reads."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of weights: torch computes with all of these, and with no other floating one."""

_DEEPEST_JSON = 100  # objects and lists inside of each other; `repr` of more would overflow
LARGEST_JSON = 1 << 24  # bytes; the index of a checkpoint of a trillion parameters has half of it


@contextmanager
def regular_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, or what a link leads to, for reading; yield it and its size in bytes."""

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # of a pipe, for somebody who writes to it

    with open(path, "rb", opener=without_waiting) as file:
        opened = os.fstat(file.fileno())
        if not stat.S_ISREG(opened.st_mode):
            raise OSError(errno.EINVAL, "Is not a regular file", str(path))
        yield file, opened.st_size


def read_small(path: Path, most: int = LARGEST_JSON) -> bytes:
    """Read a regular file."""
    with regular_file(path) as (file, size):
        content = b"" if size > most else file.read(most + 1)
    if max(size, len(content)) > most:  # it may have grown
        raise ValueError(f"has {max(size, len(content))} bytes; needs at most {most}")
    return content


def read_json(path: Path) -> Any:
    """Parse a regular file; errors as `read_small` and `json_of`."""
    return json_of(read_small(path))


def json_of(text: str | bytes) -> Any:
    """Parse JSON that is not nested too deep."""
    too_deep = f"is nested more than {_DEEPEST_JSON} times"
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(too_deep) from error
    level = [content] if isinstance(content, (dict, list)) else []
    for _ in range(_DEEPEST_JSON):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for part in parts for inner in part if isinstance(inner, (dict, list))]
    if level:
        raise ValueError(too_deep)
    return content


@contextmanager
def opened_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; its tensors come to the CPU.

    A file of another size than its header says is a `SafetensorError`, before any of it is mapped.
    """
    import safetensors

    with regular_file(path) as (file, size):
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json_of(file.read(min(length, LARGEST_JSON)))
            ends = (each.get("data_offsets", [0, 0])[1] for each in header.values())
            if (needed := 8 + length + max(ends, default=0)) != size:
                raise ValueError(f"it needs {needed} bytes by its header, and has {size}")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise safetensors.SafetensorError(f"{path.name}: {error}") from error
        with system_errors(path), torch.device("cpu"):
            content = safetensors.safe_open(path, framework="pt")
        with torch.device("cpu"), content:
            yield content


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain data; what is no number becomes null, since JSON has no NaN."""
    text = json.dumps(without_nan(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, lambda place: place.write_text(text + "\n", encoding="utf-8"))


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Make a safetensors file's content, the same for the same arguments.

    safetensors itself writes metadata in an order that differs between processes.
    """
    import safetensors.torch

    content: bytes = safetensors.torch.save(dict(tensors), dict(metadata))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


@dataclass(frozen=True)
class TensorFile:
    """One kind of file.

    Attributes:
        owner: the class whose `save` and `load` write and read such files.
        format, version: what their metadata says, a higher version for other contents.
        names: of the tensors that every file has.
        error: what is raised for a file that is not one of these, or not whole.
        optional: names of tensors that a file may have.
    """

    owner: str
    format: str
    version: int
    names: tuple[str, ...]
    error: type[ValueError]
    optional: tuple[str, ...] = ()

    def write(self, path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        """Write the tensors and, as metadata, what the file is, atomically."""
        said = {name: str(fact) for name, fact in facts.items()}
        metadata = {"format": self.format, "format_version": str(self.version), **said}
        names = [*self.names, *(name for name in self.optional if name in tensors)]
        content = {name: tensors[name].cpu().contiguous() for name in names}
        self.safetensors()
        whole = to_bytes(content, metadata)
        write_whole(path, lambda place: place.write_bytes(whole))

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the unchecked tensors of a file that says it is of this kind, and its metadata."""
        with self.opened(path) as (file, metadata):
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118

    @contextmanager
    def opened(self, path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
        """Open a file that says it is of this kind, and read its metadata; errors as `read`."""
        safetensors = self.safetensors()
        try:
            with opened_tensors(path) as file:
                metadata = file.metadata() or {}
                self._check_header(path, metadata, set(file.keys()))
                yield file, metadata
        except (IsADirectoryError, safetensors.SafetensorError) as error:
            found = f"is not a complete safetensors file ({error})"
            found = "is a directory" if isinstance(error, IsADirectoryError) else found
            raise self.error(
                f"{self.owner}.load: {path} {found}; needs a file that {self.owner}.save wrote"
            ) from error

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
        unknown = found - names - set(self.optional)
        if unknown or not names <= found:
            raise self.error(
                f"{self.owner}.load: {path} lacks {sorted(names - found)} and has unknown "
                f"{sorted(unknown)}; needs the tensors {sorted(names)}"
            )

    def safetensors(self) -> Any:
        """Import it when a file is read, as `setup.py install` brings no dependencies."""
        try:
            import safetensors.torch
        except ImportError as error:
            raise ImportError(
                f"{self.owner} needs safetensors ({error}): pip install safetensors numpy"
            ) from error
        return safetensors


_ABANDONED = 3600.0  # seconds without a write, after which a temporary file is abandoned


def write_whole(path: Path, write: Callable[[Path], object], *, mode: int = 0o666) -> None:
    """Write a file under another name next to it, then rename: no reader ever sees half of it.

    A symbolic link stays, and the file that it leads to is replaced; that file's mode stays, too.
    If it cannot be written, what was at `path` is as before.

    Args:
        write: writes the file that it is given the path of.
        mode: of a new file, less the umask.

    Raises:
        OSError: naming the file; also where it is no regular one, such as a pipe or a device.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Is not a regular file", str(path))
    with system_errors(path):
        try:
            old = path.stat()  # of what a link leads to
        except FileNotFoundError:
            old = None
        file = Path(os.path.realpath(path))
        _remove_abandoned(file)
        hidden = _hidden_name(file)
        try:
            os.close(os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            kept = hidden.stat().st_mode if old is None else old.st_mode
            write(hidden)
            hidden.chmod(stat.S_IMODE(kept))  # a library may have made a file of its own
            _sync(hidden)
            os.replace(hidden, file)
        finally:
            hidden.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the file is there, and not all can sync its folder
            _sync(file.parent)


@contextmanager
def folder_written_whole(path: Path, check: Callable[[], None]) -> Iterator[Path]:
    """Make a hidden folder next to `path`, renamed to it at the end, or removed if anything fails.

    What is at `path` is replaced; it is gone for the instant between two renamings.

    Args:
        check: raises where `path` may not be written; called at the beginning and at the end.
    """
    check()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _hidden_folder(path) as unfinished:
        with system_errors(path):
            yield unfinished
        _follow_umask(unfinished)
        for written in (*unfinished.rglob("*"), unfinished):
            _sync(written)
        check()
        if not path.exists():
            unfinished.rename(path)
            return
        with _hidden_folder(path) as attic:
            old = path.rename(attic / path.name)
            try:
                unfinished.rename(path)
            except BaseException:
                old.rename(path)
                raise


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """An `OSError` that names the file, whatever libraries raise of a full disk or memory."""
    try:
        yield
    except Exception as error:
        unfinished = str(path.with_name(f".{path.name}."))
        named = str(getattr(error, "filename", None) or path)
        if named != str(path) and not named.startswith(unfinished):
            raise  # it names another file
        # Said by Rust, by torch where it maps a file, and by what was raised of an `OSError`.
        said = re.search(r"(?:os error |memory \(|\[Errno )(\d+)[\])]", str(error))
        saving = "PytorchStreamWriter" in str(error)  # torch.save hides what the file raised
        system = error.__context__ if saving else error
        number = int(said[1]) if said else getattr(system, "errno", None)
        if number is None or number not in errno.errorcode:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def _hidden_folder(path: Path) -> Iterator[Path]:
    """A folder next to `path`, removed afterwards unless it was renamed."""
    folder = _hidden_name(path)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow_umask(folder: Path) -> None:
    """Give all files the mode of a new one: safetensors makes its own unreadable for others."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)


def _hidden_name(path: Path) -> Path:
    """A hidden name in the same folder that no other writer uses: `.NAME.HEX.tmp`."""
    return path.absolute().with_name(f".{path.name[:50]}.{uuid.uuid4().hex}.tmp")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(file: Path) -> None:
    """Remove what killed writers of the same file left, before it fills the disk."""
    ours = re.compile(rf"\.{re.escape(file.name[:50])}\.[0-9a-f]{{32}}\.tmp")
    with contextlib.suppress(OSError):
        for other in file.parent.iterdir():
            if ours.fullmatch(other.name) and time.time() - other.stat().st_mtime > _ABANDONED:
                other.unlink()
