"""Compiled kernels on disk: a kernel is compiled once on a machine, not once in each process.

Environment:
    RDK_CACHE_DIR  where they are kept (default: rdk_cuda in $XDG_CACHE_HOME, or in ~/.cache).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...files import write_whole

MAGIC = b"rdk_cuda cubin 1"


class UnsafeCacheError(RuntimeError):
    """Others could put code into the folder of compiled kernels."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel.

    Attributes:
        symbol: the kernel's name in the code.
        code: for one architecture.
    """

    symbol: str
    code: bytes


def digest(parts: Iterable[bytes]) -> str:
    """Name what was compiled, and how: other parts, another name."""
    value = hashlib.sha256()
    for part in parts:
        value.update(len(part).to_bytes(8, "little") + part)
    return value.hexdigest()


def folder() -> Path:
    """Return the folder of compiled kernels; make it for this user alone if it is not there.

    Raises:
        UnsafeCacheError: others can write there.
        OSError: it cannot be made.
    """
    # An empty variable counts as unset, as the XDG specification has it.
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("RDK_CACHE_DIR") or Path(user) / "rdk_cuda")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UnsafeCacheError(
            f"{path}, where rdk_cuda keeps compiled kernels, can be written by other users; set "
            "RDK_CACHE_DIR to a folder that only you can write"
        )
    return path


def load(key: str) -> Cubin | None:
    """Return the kernel saved under this key; None if there is none, or the file is damaged."""
    try:
        magic, checksum, content = (folder() / f"{key}.cubin").read_bytes().split(b"\n", 2)
        if magic != MAGIC or digest([content]).encode() != checksum:
            return None
        symbol, code = content.split(b"\n", 1)
    except (OSError, ValueError):
        return None
    return Cubin(symbol.decode(), code)


def save(key: str, cubin: Cubin) -> None:
    """Keep a kernel, atomically. Warns where it cannot be written."""
    content = cubin.symbol.encode() + b"\n" + cubin.code
    whole = b"\n".join((MAGIC, digest([content]).encode(), content))
    try:
        # Code that no group may write, whatever the umask.
        write_whole(folder() / f"{key}.cubin", lambda path: path.write_bytes(whole), mode=0o600)
    except OSError as error:
        warnings.warn(
            f"rdk_cuda cannot keep a compiled kernel ({error}), and will compile it again in the "
            "next process; set RDK_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )
