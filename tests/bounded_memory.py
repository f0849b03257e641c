"""Limits on memory and on the disk, for tests of files that ask for more than there is."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


def memory_for(more: int) -> AbstractContextManager[None]:
    """No more than so many bytes of address space beyond those that the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)


def disk_for(size: int) -> AbstractContextManager[None]:
    """Ends every write beyond so many bytes of a file, as a full disk would."""
    return _limit(resource.RLIMIT_FSIZE, size)


@contextmanager
def _limit(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
