"""What several folders of tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rdk_cuda

from . import without_hypothesis  # noqa: F401  (before whatever imports hypothesis)
from .devices import (  # noqa: F401  (fixtures)
    PLACE,
    cpu,
    cpu_or_cuda,
    device,
    emulated,
    enable_cuda,
    kernels,
    native,
    on_device,
)

if TYPE_CHECKING:
    from rdk_cuda.recipes.inputs.pairs import ModelPair


# Their tests share what takes a minute to build.
ONE_PROCESS = {"packaging", "mutation", "fuzz", "cpu"}
# Begun last, one of these would run while the other cores have nothing left to do.
LONGEST = ("packaging", "fuzz", "mutation", "emulated/test_kernels_memory.py")


def pytest_configure(config: pytest.Config) -> None:
    enable_cuda()
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # the other cores have processes of their own


def pytest_report_header() -> str:
    return f"CUDA operators: {rdk_cuda.build_info()['cuda_backend']}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU one test of a file is skipped for all that need one.

    With pytest-xdist, the tests of a file or of a whole folder run in one process.
    """
    if not PLACE:
        on_gpu = {item for item in items if item.get_closest_marker("gpu")}
        first = {item.path: item for item in reversed(items) if item in on_gpu}
        items[:] = [item for item in items if item not in on_gpu or item is first[item.path]]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: group_of(item) not in LONGEST)


def group_of(item: pytest.Item) -> str:
    """Which tests run in one process with this one."""
    folder = item.path.parent.name
    return folder if folder in ONE_PROCESS else f"{folder}/{item.path.name}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Stops where pytest-xdist spreads a group over processes: each builds what they share."""
    grouped = node.config.option.dist == "loadgroup"
    if alone := [test for test in ids if grouped and "@" not in test]:
        pytest.exit(
            f"pytest {pytest.__version__} and this pytest-xdist do not keep groups of tests in one "
            f"process ({alone[0]} has no group): install what pyproject.toml asks for",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


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
def tiny(directories: tuple[Path, Path]) -> ModelPair:
    """Both, loaded."""
    from rdk_cuda.recipes.inputs.loading import load_pair

    return load_pair(*directories)


@pytest.fixture
def pair(directories: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the models, to be spoiled."""
    copies = tmp_path / "target", tmp_path / "drafter"
    for source, copy in zip(directories, copies, strict=True):
        shutil.copytree(source, copy)
    return copies
