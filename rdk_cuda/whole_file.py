"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

__all__ = ["name_beside", "sync", "write_whole"]

_ABANDONED = 3600.0  # seconds without a write, and nobody is writing a temporary file any more


def write_whole(path: Path, write: Callable[[Path], object], *, mode: int = 0o666) -> None:
    """Write a file under another name next to it, then rename: no reader ever sees half of it.

    A symbolic link stays, and the file that it leads to is replaced; that file's mode stays, too.
    What is no regular file, such as a pipe or a device, is not replaced: all bytes are written to
    it once they are complete.

    Args:
        write: writes the file that it is given the path of.
        mode: of a new file, less the umask.

    Raises:
        OSError: it cannot be written, and what was at `path` is as before.
    """
    try:
        old = path.stat()  # of what a link leads to
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        _write_into(path, write)
        return
    file = Path(os.path.realpath(path))
    _remove_abandoned(file)
    beside = name_beside(file)
    try:
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        kept = beside.stat().st_mode if old is None else old.st_mode
        write(beside)
        beside.chmod(stat.S_IMODE(kept))  # a library may have made a file of its own
        sync(beside)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the file is there; not every file system can sync folders
        sync(file.parent)


def name_beside(path: Path) -> Path:
    """A hidden name in the same folder that nobody else uses: `.NAME.HEX.tmp`."""
    return path.absolute().with_name(f".{path.name[:50]}.{uuid.uuid4().hex}.tmp")


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_into(path: Path, write: Callable[[Path], object]) -> None:
    """Writers may seek, map and rename; so they get a file, and the pipe or device its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / (path.name or "content")
        write(content)
        with content.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def _remove_abandoned(file: Path) -> None:
    """What killed writers of the same file left, or a large one would fill the disk in time."""
    ours = re.compile(rf"\.{re.escape(file.name[:50])}\.[0-9a-f]{{32}}\.tmp")
    with contextlib.suppress(OSError):
        for other in file.parent.iterdir():
            if ours.fullmatch(other.name) and time.time() - other.stat().st_mtime > _ABANDONED:
                other.unlink()
