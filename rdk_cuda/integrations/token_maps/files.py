"""The content of other projects' token maps, read without running anything in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...files import json_of, opened_tensors, read_json, read_small, regular_file

_LARGEST_LIST = 1 << 26  # bytes; a list of 2^18 ids takes a megabyte or two in any of the formats
_CHECKPOINTS = ("model.safetensors", "pytorch_model.bin")
_MAPS = {"d2t": "d2t", "draft_id_to_target_id": "d2t", "t2d": "t2d"}
_HEADS = ("lm_head.weight", "model.lm_head.weight")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INT64_MAX = 2**63 - 1
_NEEDS_IDS = "needs target ids (of scores, Vocabulary.most_likely keeps the highest)"


class TokenMapError(ValueError):
    """A token map that cannot be read, or does not fit the model. Names the file and why."""


class D2T(NamedTuple):
    """What an EAGLE-3 checkpoint says of its vocabulary.

    Attributes:
        d2t: `[V_d]` int64, offsets or target ids.
        t2d: as it is, of at most `V_t` entries, or None.
        head_rows: of the `lm_head` in the same checkpoint, or None where it has none.
    """

    d2t: Tensor
    t2d: Tensor | None
    head_rows: int | None


def read_content(path: Path, target_size: int) -> Tensor | D2T:
    """A list of ids as a `[V_d]` int64 tensor, or what a checkpoint holds; values unchecked.

    The format is found from the first bytes, not from the name. A list may have at most 64 MiB.
    From a checkpoint only the maps are read, and only if they are not longer than `target_size`.
    """
    if path.is_dir():
        return _from_directory(path, target_size)
    with regular_file(path) as (file, size):
        start = file.read(9)
    if start.startswith(b"\x93NUMPY"):
        return _from_numpy(path, target_size)
    header = int.from_bytes(start[:8], "little")  # its lowest byte may be a pickle's first
    if start[8:] == b"{" and header + 8 <= size:
        return _d2t(path, _from_safetensors(path, target_size), target_size)
    if start.startswith(b"PK\x03\x04") or start[:1] == b"\x80":  # what a pickle begins with
        return _of_torch(path, load_torch(path), target_size)
    return _vector(f"{path}", _integers(path, _from_text(path), target_size), target_size)


# A checkpoint's folder, whole or in shards.


def checkpoint_files(folder: Path, wanted: Callable[[str], object] = bool) -> list[Path]:
    """The files that the tensors with wanted names are in, by an index if there are shards."""
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
        f"{folder}: holds neither {' nor '.join(_CHECKPOINTS)}, whole or in shards; needs a "
        "drafter's checkpoint"
    )


def _from_directory(folder: Path, target_size: int) -> D2T:
    found: dict[str, Any] = {}
    for shard in checkpoint_files(folder, _role):
        if shard.suffix == ".safetensors":
            parts = _from_safetensors(shard, target_size)
        else:
            parts = _roles(shard, _state_dict(shard, load_torch(shard)), target_size)
        _refuse_second(shard, found, parts)
        found |= parts
    return _d2t(folder, found, target_size)


def _from_safetensors(path: Path, target_size: int) -> dict[str, Any]:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(f"{path} is a safetensors file: pip install safetensors") from error
    found: dict[str, Any] = {}
    try:
        with opened_tensors(path) as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                role = _role(name)
                if role is None:
                    continue
                shape = file.get_slice(name).get_shape()
                _refuse_second(path, found, [role])
                if role == "head":
                    found[role] = shape[0] if shape else 0
                else:
                    _refuse_shape(f"{path}: {name}", shape, target_size)
                    found[role] = file.get_tensor(name)
    except safetensors.SafetensorError as error:
        raise TokenMapError(
            f"{path}: is not a complete safetensors file ({error}); copy it anew"
        ) from error
    return found


def _roles(path: Path, tensors: dict[str, Tensor], target_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if role := _role(name):
            _refuse_second(path, found, [role])
            if role == "head":
                found[role] = tensor.shape[0] if tensor.dim() else 0
            else:
                _refuse_shape(f"{path}: {name}", tensor.shape, target_size)
                found[role] = tensor
    return found


def _role(name: str) -> str | None:
    """`d2t` of the EAGLE repository may be `model.d2t` elsewhere, and has a name of vLLM's own."""
    return "head" if name in _HEADS else _MAPS.get(name.rpartition(".")[2])


def _refuse_second(path: Path, found: dict[str, Any], roles: Iterable[str]) -> None:
    for role in roles:
        if role in found:
            raise TokenMapError(f"{path}: has more than one {role}; needs the drafter's alone")


def _d2t(path: Path, found: dict[str, Any], target_size: int) -> D2T:
    if "d2t" not in found:
        raise TokenMapError(
            f"{path}: has no d2t; needs an EAGLE-3 drafter with a vocabulary of its own (one "
            "without d2t has the target's: Vocabulary.identity)"
        )
    d2t = _vector(f"{path}: d2t", found["d2t"], target_size)
    return D2T(d2t, found.get("t2d"), found.get("head"))


# torch.save: a list, a tensor, or the weights of a checkpoint.


def load_torch(path: Path) -> Any:
    """Plain data and tensors; a checkpoint's are mapped, not read."""
    try:
        with regular_file(path) as (file, size):
            is_zip = zipfile.is_zipfile(file)  # it, too, raises BadZipFile at some archives
        if is_zip:
            _refuse_compressed(path)
        elif size > _LARGEST_LIST:
            raise TokenMapError(f"{path}: has {size} bytes; needs at most {_LARGEST_LIST}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL (\S+)", str(error)):
            raise TokenMapError(
                f"{path}: is a pickle that asks for {named[1]}, and loading it could run code; "
                "needs a plain list or tensor, written by torch.save"
            ) from None
        raise TokenMapError(
            f"{path}: is a pickle, but not of torch.save ({_last_line(error)}); needs a plain list "
            "or tensor, written by torch.save"
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


def _of_torch(path: Path, content: Any, target_size: int) -> Tensor | D2T:
    if isinstance(content, dict):
        tensors = _state_dict(path, content)
        return _d2t(path, _roles(path, tensors, target_size), target_size)
    if isinstance(content, (list, tuple)):
        content = _integers(path, content, target_size)
    return _vector(f"{path}", content, target_size)


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    tensors = {
        name: tensor
        for name, tensor in (content.items() if isinstance(content, dict) else ())
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    if not tensors:
        raise TokenMapError(
            f"{path}: holds a {type(content).__name__} without named tensors; needs a list of "
            "target ids or a checkpoint with d2t (of frequencies, Vocabulary.most_likely keeps the "
            "highest)"
        )
    return tensors


# Lists of other kinds.


def _from_numpy(path: Path, target_size: int) -> Tensor:
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # objects, which only a pickle could hold; whatever damage makes
        raise TokenMapError(
            f"{path}: is no plain NumPy array ({_last_line(error)}); needs integers, saved by "
            "numpy.save with allow_pickle=False"
        ) from error
    _refuse_shape(f"{path}", array.shape, target_size)
    if array.dtype.kind not in "iu":
        raise TokenMapError(f"{path}: has dtype {array.dtype}; {_NEEDS_IDS}")
    return torch.from_numpy(array.astype(np.int64))


def _from_text(path: Path) -> list[Any]:
    """A JSON list, or ids between white space, where # begins a comment."""
    try:
        text = read_small(path, _LARGEST_LIST).decode("utf-8-sig")
        if text.lstrip()[:1] in ("[", "{"):
            content = json_of(text)
            if not isinstance(content, list):
                raise ValueError("a JSON object")
            return content
        lines = (line.partition("#")[0] for line in text.splitlines())
        return [int(word) for line in lines for word in line.split()]
    except ValueError as error:
        raise TokenMapError(
            f"{path}: {_last_line(error)}; needs target ids, one a line or as a JSON list"
        ) from error


def _integers(path: Path, ids: Sequence[Any], target_size: int) -> Tensor:
    _refuse_shape(f"{path}", [len(ids)], target_size)
    for at, id in enumerate(ids):
        if type(id) is not int or not -_INT64_MAX <= id <= _INT64_MAX:  # True is an int, too
            raise TokenMapError(f"{path}: [{at}] is {id!r:.40}; needs target ids")
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _vector(name: str, content: Any, target_size: int) -> Tensor:
    if not isinstance(content, Tensor):
        raise TokenMapError(f"{name}: holds a {type(content).__name__}; needs a list of target ids")
    _refuse_shape(name, content.shape, target_size)
    plain = content.layout == torch.strided and content.device.type == "cpu"
    if content.dtype not in INTEGERS or not plain:
        raise TokenMapError(f"{name}: has dtype {content.dtype}; {_NEEDS_IDS}")
    return content.detach().to(torch.int64, copy=True)


def _refuse_shape(name: str, shape: Iterable[int], target_size: int) -> None:
    sizes = list(shape)
    if len(sizes) != 1 or not 1 <= sizes[0] <= target_size:
        raise TokenMapError(
            f"{name} has shape {sizes}; needs one dimension with 1 to V_t = {target_size} entries"
        )


def _last_line(error: BaseException) -> str:
    """Of a message; torch's begin with how to load the file anyway."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "torch.load" not in line and "weights_only" not in line]
    return (told or lines or [type(error).__name__])[-1].rstrip(".")
