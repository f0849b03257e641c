"""What several folders of tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from rdk_cuda.cli.models import Models


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For models so small that they run slower in several threads than in one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target, with its tokenizer, and a tiny drafter."""
    pytest.importorskip("transformers")
    from tests.tiny_models import save_pair

    return save_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def tiny(directories: tuple[Path, Path]) -> Models:
    """Both, loaded."""
    from rdk_cuda.cli.models import load_models

    return load_models(*directories)


@pytest.fixture
def pair(directories: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the models, to be spoiled."""
    copies = tmp_path / "target", tmp_path / "drafter"
    for source, copy in zip(directories, copies, strict=True):
        shutil.copytree(source, copy)
    return copies
