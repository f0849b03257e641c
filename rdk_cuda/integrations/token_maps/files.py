"""The content of other projects' token maps, read without running anything in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...files import json_of, opened_tensors, read_json, read_small, regular_file

_LARGEST_LIST = 1 << 26  # bytes; a list of 2^18 ids takes a megabyte or two in any of the formats
_CHECKPOINTS = ("model.safetensors", "pytorch_model.bin")
_ROLES = {"d2t": "d2t", "draft_id_to_target_id": "d2t", "t2d": "t2d"}
_HEADS = ("lm_head.weight", "model.lm_head.weight")

_Entry = tuple[str, list[int], Callable[[], Tensor]]  # a tensor's name and shape, and itself


class TokenMapError(ValueError):
    """A token map that cannot be read, or does not fit the model. Names the file and why."""


class D2T(NamedTuple):
    """The vocabulary of an EAGLE-3 checkpoint, as stored.

    Attributes:
        d2t: `[V_d]`, offsets or target ids.
        t2d: as it is, of at most `V_t` entries, or None.
        head_rows: of the `lm_head` in the same checkpoint, or None where it has none.
    """

    d2t: Tensor
    t2d: Tensor | None
    head_rows: int | None


def read_content(path: Path, target_size: int) -> Any:
    """Read a list of ids, unchecked, or the `D2T` of a checkpoint.

    The format is found from the first bytes, not from the name. A list may have at most 64 MiB.
    From a checkpoint only the maps are read, and only if they are not longer than `target_size`.
    """
    if path.is_dir():
        files = checkpoint_files(path, _role)
        return _d2t(path, (entry for file in files for entry in entries(file)), target_size)
    with regular_file(path) as (file, size):
        start = file.read(9)
    header = int.from_bytes(start[:8], "little")  # its lowest byte may be a pickle's first
    if start[8:] == b"{" and header + 8 <= size:
        return _d2t(path, _of_safetensors(path), target_size)
    if start.startswith(b"PK\x03\x04") or start[:1] == b"\x80":  # what a pickle begins with
        content = load_torch(path)
        is_list = isinstance(content, list | tuple | Tensor)
        return content if is_list else _d2t(path, _of_state_dict(path, content), target_size)
    try:
        content = json_of(read_small(path, _LARGEST_LIST))
    except ValueError as error:
        raise TokenMapError(
            f"{path}: {_last_line(error)}; needs a JSON list of target ids, a file of torch.save "
            "or a checkpoint with d2t"
        ) from error
    return content


def checkpoint_files(folder: Path, wanted: Callable[[str], object] = bool) -> list[Path]:
    """Find the files that the tensors with wanted names are in, by an index if there are shards."""
    for name in _CHECKPOINTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if not index.is_file():
            continue
        try:
            places = read_json(index)["weight_map"].items()
            files = sorted({str(file) for tensor, file in places if wanted(tensor)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenMapError(f"{index}: is no index of a checkpoint ({error!r})") from error
        present = {entry.name for entry in folder.iterdir() if entry.is_file()}
        if absent := [file for file in files if file not in present]:
            raise TokenMapError(f"{index}: names {absent[0]!r}, which is not next to it")
        return [folder / file for file in files]
    raise TokenMapError(
        f"{folder}: holds neither {' nor '.join(_CHECKPOINTS)}, whole or in shards; needs one"
    )


def entries(file: Path) -> Iterator[_Entry]:
    """List the tensors of a checkpoint's file; each is read when it is asked for."""
    if file.suffix == ".safetensors":
        return _of_safetensors(file)
    return _of_state_dict(file, load_torch(file))


def _of_safetensors(path: Path) -> Iterator[_Entry]:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(f"{path} is a safetensors file: pip install safetensors") from error
    try:
        with opened_tensors(path) as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                yield name, file.get_slice(name).get_shape(), partial(_read, path, file, name)
    except safetensors.SafetensorError as error:
        raise TokenMapError(
            f"{path}: is not a complete safetensors file ({error}); copy it anew"
        ) from error


def _read(path: Path, file: Any, name: str) -> Any:
    try:
        return file.get_tensor(name)
    except Exception as error:  # of a dtype that torch lacks
        raise TokenMapError(f"{path}: {name} cannot be read ({error})") from error


def _of_state_dict(path: Path, content: Any) -> Iterator[_Entry]:
    named = content.items() if isinstance(content, dict) else ()
    tensors = {n: t for n, t in named if isinstance(n, str) and isinstance(t, Tensor)}
    if not tensors:
        raise TokenMapError(
            f"{path}: holds a {type(content).__name__} without named tensors; needs a list of "
            "target ids or a checkpoint with d2t"
        )
    size = path.stat().st_size
    plain = all(t.layout == torch.strided and not t.is_meta for t in tensors.values())
    # Twice, since a head may be tied to the embeddings.
    # Not nbytes, which goes round at 2^63.
    if not plain or sum(t.numel() * t.element_size() for t in tensors.values()) > 2 * size:
        raise TokenMapError(
            f"{path}: has {size} bytes, and tensors that are not there; needs whole tensors"
        )
    for name, tensor in tensors.items():
        yield name, list(tensor.shape), partial(Tensor.detach, tensor)


def _role(name: str) -> str | None:
    return "head" if name in _HEADS else _ROLES.get(name.rpartition(".")[2])


def _d2t(path: Path, entries: Iterable[_Entry], target_size: int) -> D2T:
    found: dict[str, Any] = {}
    for name, shape, read in entries:
        role = _role(name)
        if role is None:
            continue
        if role in found:
            raise TokenMapError(f"{path}: has more than one {role}; needs the drafter's alone")
        if role == "head":
            found[role] = shape[0] if shape else 0
        elif len(shape) == 1 and shape[0] <= target_size:
            found[role] = read()
        else:
            raise TokenMapError(
                f"{path}: {name} has shape {shape}; needs [n], n up to V_t = {target_size}"
            )
    if "d2t" not in found:
        raise TokenMapError(
            f"{path}: has no d2t; needs an EAGLE-3 drafter with a vocabulary of its own (one "
            "without d2t has the target's: Vocabulary.identity)"
        )
    return D2T(found["d2t"], found.get("t2d"), found.get("head"))


def load_torch(path: Path) -> Any:
    """Load plain data and tensors; a checkpoint's are mapped, not read."""
    try:
        with regular_file(path) as (file, size):
            is_zip = zipfile.is_zipfile(file)  # it, too, raises BadZipFile at some archives
        if is_zip:
            _refuse_compressed(path)
        elif size > _LARGEST_LIST:
            raise TokenMapError(f"{path}: has {size} bytes; needs at most {_LARGEST_LIST}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        asks = f"that asks for {named[1]}, and loading it could run code" if named else ""
        raise TokenMapError(
            f"{path}: is a pickle {asks or f'not of torch.save ({_last_line(error)})'}; needs a "
            "plain list or tensor, written by torch.save"
        ) from None
    except (OSError, TokenMapError):
        raise
    except Exception as error:  # whatever a damaged archive makes of torch's readers
        raise TokenMapError(
            f"{path}: is no whole file of torch.save ({_last_line(error)}); copy it anew"
        ) from error


def _refuse_compressed(path: Path) -> None:
    """torch.save never compresses: a small file that unpacks to a large one is not its work."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            pickled = entry.filename.endswith(".pkl") and entry.file_size > _LARGEST_LIST
            if entry.compress_type != zipfile.ZIP_STORED or pickled:
                raise TokenMapError(
                    f"{path}: {entry.filename} unpacks to {entry.file_size} bytes; needs an "
                    f"uncompressed file of torch.save with at most {_LARGEST_LIST} bytes of list"
                )


def _last_line(error: BaseException) -> str:
    """Of a message; torch's begin with how to load the file anyway."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "torch.load" not in line and "weights_only" not in line]
    return (told or lines or [type(error).__name__])[-1].rstrip(".")
