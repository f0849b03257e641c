"""The tensors of a drafter's checkpoint, read without running anything that is in the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from ..token_maps.files import TokenMapError, checkpoint_files, entries

WEIGHTS = "model.safetensors"


class CheckpointError(ValueError):
    """A directory without such a drafter for this target. Names the file or field."""


def tensor_names(folder: Path) -> frozenset[str]:
    """List the tensors' names, as `read_tensors` has them; the tensors themselves stay on disk."""
    return frozenset(name for _, name, _ in _entries(folder))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors, by the names that `Eagle3Network` has for them."""
    tensors: dict[str, Tensor] = {}
    for file, name, read in _entries(folder):
        if name in tensors:
            raise CheckpointError(f"{file}: has a second {name}")
        with _blamed():
            tensors[name] = read()
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The files that a checkpoint's tensors are in."""
    try:
        return checkpoint_files(folder)
    except TokenMapError as error:
        raise CheckpointError(str(error)) from error


def _entries(folder: Path) -> Iterator[tuple[Path, str, Callable[[], Tensor]]]:
    for file in weight_files(folder):
        with _blamed():
            for name, _, read in entries(file):
                own = name.removeprefix("model.")
                if own.startswith("midlayer."):
                    own = "layers.0." + own[len("midlayer.") :]
                yield file, own, read


@contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except TokenMapError as error:
        raise CheckpointError(f"{error}; needs a file of plain tensors") from error
