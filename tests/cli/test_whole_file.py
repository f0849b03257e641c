"""A file is written whole, and nothing but a regular file is ever replaced."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from rdk_cuda import Affinity, SuccessorTable, Vocabulary, files
from rdk_cuda.files import write_whole
from rdk_cuda.integrations.cupy import cubin_cache
from rdk_cuda.integrations.token_maps import write_d2t, write_hot_tokens
from rdk_cuda.recipes import shards
from rdk_cuda.recipes.report.written import write_csv

from ..bounded_memory import disk_for

VOCABULARY = Vocabulary([4, 0], 6)
WRITERS: dict[str, Callable[[Path], object]] = {
    "affinity": Affinity.intersection(VOCABULARY).save,
    "successors": SuccessorTable(
        torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), 1
    ).save,
    "recording": lambda path: shards._write(
        path, shards._FILE, {"counts": torch.arange(4)}, {"about": "{}"}
    ),
    "d2t": lambda path: write_d2t(VOCABULARY, path),
    "hot tokens": lambda path: write_hot_tokens(VOCABULARY, path),
    "json": lambda path: files.write_json({"acceptance": 0.5}, path),
    "csv": lambda path: write_csv([{"acceptance": 0.5}], ["acceptance"], path),
    "tokenizer": lambda path: write_whole(path, lambda place: Tokenizer(BPE()).save(str(place))),
}
every_writer = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def is_whole(found: bytes, name: str, folder: Path) -> bool:
    """The bytes of a regular file; safetensors puts a recording's metadata in any order."""
    WRITERS[name](folder / "regular")
    return sorted(found) == sorted((folder / "regular").read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@every_writer
def test_a_pipe_or_a_device_is_refused_by_name_and_stays(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        before = path.stat()
        with pytest.raises(OSError, match="Is not a regular file") as raised:
            WRITERS[name](path)
        assert raised.value.filename == str(path)
        assert path.stat().st_mode == before.st_mode
    assert os.listdir(tmp_path) == ["pipe"]


@every_writer
def test_a_full_disk_is_an_os_error_that_names_the_file_and_the_old_one_stays(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with disk_for(8), pytest.raises(OSError, match="File too large") as raised:
        WRITERS[name](path)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


@every_writer
def test_a_link_stays_and_its_file_is_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    link.symlink_to(Path("there") / "file")
    for _ in range(2):  # a link to nothing, then one to a file
        WRITERS[name](link)
        assert link.is_symlink()
        assert not target.is_symlink()
        assert is_whole(target.read_bytes(), name, tmp_path)
    assert os.listdir(target.parent) == ["file"]


@every_writer
@pytest.mark.usefixtures("ordinary_umask")
def test_a_new_file_has_the_mode_of_any_other_and_an_old_one_keeps_its(
    name: str, tmp_path: Path
) -> None:
    WRITERS[name](tmp_path / "file")
    assert mode(tmp_path / "file") == 0o644
    for kept in (0o600, 0o664):
        (tmp_path / "file").chmod(kept)
        WRITERS[name](tmp_path / "file")
        assert mode(tmp_path / "file") == kept


def test_compiled_code_is_writable_by_its_user_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDK_CACHE_DIR", str(tmp_path))
    before = os.umask(0)
    try:
        cubin_cache.save("key", cubin_cache.Cubin("symbol", b"code"))
    finally:
        os.umask(before)
    assert mode(tmp_path / "key.cubin") == 0o600
    assert os.listdir(tmp_path) == ["key.cubin"]


def test_the_content_is_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def renamed(old: Path, new: Path) -> None:
        done.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_whole(tmp_path / "file", lambda path: path.write_text("whole"))
    assert done == ["content", "rename", "folder"]


def test_an_interrupted_writer_leaves_the_old_file_and_two_do_not_share_a_name(
    tmp_path: Path,
) -> None:
    path, names = tmp_path / "file", []

    def write(unfinished: Path) -> None:
        names.append(unfinished)
        if len(names) == 1:
            write_whole(path, write)  # another process, meanwhile
            raise KeyboardInterrupt
        unfinished.write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, write)
    assert len(set(names)) == 2
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    own, fresh, other = (
        tmp_path / f".{name}.{digit * 32}.tmp"
        for name, digit in (("file", "a"), ("file", "b"), ("files", "a"))
    )
    for left in (own, fresh, other):
        left.touch()
    for left in (own, other):
        os.utime(left, (0, time.time() - 2 * 3600))
    write_whole(tmp_path / "file", lambda path: path.write_text("whole"))
    assert set(tmp_path.iterdir()) == {tmp_path / "file", fresh, other}


def test_a_name_of_any_length_that_a_file_may_have_will_do(tmp_path: Path) -> None:
    for name in ("x" * 255, "ä" * 127):
        write_whole(tmp_path / name, lambda path: path.write_text("whole"))
        assert (tmp_path / name).read_text() == "whole"
