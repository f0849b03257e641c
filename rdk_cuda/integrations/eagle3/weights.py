"""The tensors of a drafter's checkpoint, read without running anything that is in the files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...files import opened_tensors
from ..token_maps.files import TokenMapError, checkpoint_files, load_torch

WEIGHTS = "model.safetensors"


class CheckpointError(ValueError):
    """A directory without such a drafter for this target. Names the file or field."""


def tensor_names(folder: Path) -> frozenset[str]:
    """List the tensors' names, as `read_tensors` has them; the tensors themselves stay on disk."""
    names: list[str] = []
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            from safetensors import SafetensorError

            try:
                with opened_tensors(file) as content:
                    names += content.keys()
            except SafetensorError as error:
                raise CheckpointError(f"{file}: is no file of plain tensors ({error})") from error
        else:
            names += _tensors_of(file)
    return frozenset(map(_own_name, names))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors, by the names that `Eagle3Network` has for them."""
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for name, tensor in _tensors_of(file).items():
            own = _own_name(name)
            if own in tensors:
                raise CheckpointError(f"{file}: has a second {own}")
            tensors[own] = tensor
    return tensors


def _own_name(name: str) -> str:
    own = name.removeprefix("model.")
    return "layers.0." + own[len("midlayer.") :] if own.startswith("midlayer.") else own


def weight_files(folder: Path) -> list[Path]:
    """The files that a checkpoint's tensors are in."""
    try:
        return checkpoint_files(folder)
    except TokenMapError as error:
        raise CheckpointError(str(error)) from error


def _tensors_of(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            with opened_tensors(file) as content:
                return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        loaded = load_torch(file)
    except OSError:
        raise
    except Exception as error:  # whatever damage, or a pickle that asks for code, leads to
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file}: is no file of plain tensors ({reason:.200})") from error
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise CheckpointError(f"{file}: holds more than named tensors; needs a state_dict")
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(f"{file}: {name} is {tensor.layout}; needs plain tensors")
    size, needed = file.stat().st_size, sum(tensor.nbytes for tensor in loaded.values())
    if needed > 2 * size:  # twice, since a head may be tied to the embeddings
        raise CheckpointError(
            f"{file}: has {size} bytes, and its tensors take {needed}; needs whole tensors"
        )
    return {str(name): tensor for name, tensor in loaded.items()}
