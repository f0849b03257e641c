"""Affinities on disk: safetensors of the canonical tensors, and nothing that follows from them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .validation import CANONICAL, AffinityError

__all__ = ["read_canonical", "write_canonical"]

_FORMAT = "rdk_cuda.affinity"
_VERSION = 1
# Without priors nothing in a file is as long as the target's vocabulary, so a short one could ask
# for any amount of memory. The largest vocabularies have 2^18 tokens.
_LARGEST_TARGET = 1 << 24


def write_canonical(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes beside `path` and renames, so that no reader ever sees half a file."""
    metadata = {"format": _FORMAT, "format_version": str(_VERSION), **_sizes(tensors)}
    content = {name: tensors[name].cpu().contiguous() for name in CANONICAL}
    safetensors = _safetensors()
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        beside.write_bytes(safetensors.torch.save(content, metadata))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_canonical(path: Path) -> dict[str, Tensor]:
    """The tensors in a file that says it is an affinity of this version; their values unchecked.

    Raises:
        AffinityError: naming the file and what is wrong with it.
        OSError: if it cannot be opened.
    """
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_header(path, metadata, set(file.keys()))
            tensors = {name: file.get_tensor(name) for name in CANONICAL}
    except safetensors.SafetensorError as error:
        raise AffinityError(
            f"Affinity.load: {path} is not a complete safetensors file ({error}); needs one "
            "written by Affinity.save"
        ) from error
    if tensors["bias"].dim() != 1 or tensors["prior_cdf"].dim() != 2:
        return tensors  # sizes cannot be compared; the shapes are refused by check_canonical
    if tensors["prior_cdf"].shape[1] > _LARGEST_TARGET:
        raise AffinityError(
            f"Affinity.load: {path} has {tensors['prior_cdf'].shape[1]} target tokens; a file may "
            f"have at most {_LARGEST_TARGET}"
        )
    for name, size in _sizes(tensors).items():
        if metadata.get(name) != size:
            raise AffinityError(
                f"Affinity.load: {path} says {name} = {metadata.get(name)}, but its tensors have "
                f"{size}; the file was altered"
            )
    return tensors


def _safetensors() -> Any:
    """Imported when a file is, as `setup.py install` brings no dependencies."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            f"affinities are kept in safetensors files ({error}): pip install safetensors numpy"
        ) from error
    return safetensors


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {
        "draft_size": str(tensors["bias"].shape[0]),
        "target_size": str(tensors["prior_cdf"].shape[1]),
    }


def _check_header(path: Path, metadata: Mapping[str, str], names: set[str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise AffinityError(
            f"Affinity.load: {path} is a safetensors file of format {metadata.get('format')!r}; "
            f"needs {_FORMAT!r}, as Affinity.save writes it"
        )
    version = metadata.get("format_version")
    if version != str(_VERSION):
        raise AffinityError(
            f"Affinity.load: {path} has format version {version!r}; this rdk_cuda reads version "
            f"{_VERSION} (a higher number needs a newer rdk_cuda)"
        )
    if names != set(CANONICAL):
        raise AffinityError(
            f"Affinity.load: {path} lacks {sorted(set(CANONICAL) - names)} and has unknown "
            f"{sorted(names - set(CANONICAL))}; needs the tensors {sorted(CANONICAL)}"
        )
