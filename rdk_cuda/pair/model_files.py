"""Where a model is: a directory as Transformers writes it, or a GGUF file."""

from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from .errors import INSTALL, InputError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
GGUF = ".gguf"
READS_GGUF = ("gguf", "accelerate")  # what Transformers reads such a file with


class ModelFiles(NamedTuple):
    """A directory and, if the weights are in a GGUF file, its name there."""

    directory: Path
    gguf: str | None = None

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer lies in the directory, next to the weights."""
        return any((self.directory / name).is_file() for name in TOKENIZER_FILES)

    @property
    def tokenizer_gguf(self) -> str | None:
        """The GGUF file that the tokenizer is read from, if none lies next to it."""
        return None if self.has_tokenizer else self.gguf


def model_files(option: str, path: Path) -> ModelFiles:
    """What a path on the command line names: a directory, or a GGUF file."""
    if path.suffix == GGUF and path.is_file():
        files = ModelFiles(path.parent, path.name)
    elif any(path.glob("*.safetensors")):
        files = ModelFiles(path)
    else:
        found = sorted(file.name for file in path.glob(f"*{GGUF}"))
        if len(found) > 1:
            raise InputError(
                f"{option} {path}: holds {len(found)} GGUF files, as {found[0]}; name one of them"
            )
        files = ModelFiles(path, *found)
    missing = [name for name in READS_GGUF if find_spec(name) is None]
    if files.gguf is not None and missing:
        raise InputError(
            f"{option} {path}: a GGUF file needs {' and '.join(missing)}: {INSTALL.format('gguf')}"
        )
    return files


def weight_files(path: Path) -> list[Path]:
    """The files that a model's weights are in."""
    names = "*.safetensors", "pytorch_model*.bin", f"*{GGUF}"
    return [path] if path.is_file() else sorted(chain.from_iterable(map(path.glob, names)))
