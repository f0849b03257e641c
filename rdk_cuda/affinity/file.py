"""Affinities on disk: safetensors of the canonical tensors, and nothing that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..files import TensorFile
from .validation import CANONICAL, AffinityError

_FILE = TensorFile("Affinity", "rdk_cuda.affinity", 1, tuple(CANONICAL), AffinityError)
# Without priors nothing in a file is as long as the target's vocabulary, so a short one could ask
# for any amount of memory. The largest vocabularies have 2^18 tokens.
LARGEST_TARGET = 1 << 24


def write_canonical(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file next to `path` and renames it, so that no reader ever sees half a file."""
    _FILE.write(path, tensors, _sizes(tensors))


def read_canonical(path: Path) -> dict[str, Tensor]:
    """The tensors in a file that says it is an affinity of this version; their values unchecked.

    Raises:
        AffinityError: naming the file and what is wrong with it.
        OSError: if it cannot be opened.
    """
    tensors, metadata = _FILE.read(path)
    if tensors["bias"].dim() != 1 or tensors["prior_cdf"].dim() != 2:
        return tensors  # sizes cannot be compared; the shapes are refused by check_canonical
    if tensors["prior_cdf"].shape[1] > LARGEST_TARGET:
        raise AffinityError(
            f"Affinity.load: {path} has {tensors['prior_cdf'].shape[1]} target tokens; a file may "
            f"have at most {LARGEST_TARGET}"
        )
    _FILE.check_sizes(path, metadata, _sizes(tensors))
    return tensors


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {
        "draft_size": tensors["bias"].shape[0],
        "target_size": tensors["prior_cdf"].shape[1],
    }
