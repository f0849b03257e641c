"""Tests of what only a GPU has; `python3 -m tests.gpu`, `make gpu-check`, runs them and more.

The operators' own tests find the GPU by `tests.devices`. Where there is none, the modules here are
not even imported. Tests that need no GPU, of what the others stand on, are in plumbing/. With a
build without CUDA operators, kernels through CuPy are tested.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rdk_cuda
from rdk_cuda._ops.contract import OPERATORS
from tests.devices import PLACE

# Autouse.
from tests.operators.conftest import _one_thread  # noqa: F401

FOLDER = Path(__file__).parent


if not PLACE:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """For tests that put tensors on the device themselves."""
    return torch.device("cuda", 0) if PLACE == "cuda" else torch.device("cpu")


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """For tests of what only a GPU has: streams, graphs, its memory."""
    if PLACE != "cuda":
        pytest.skip("needs a GPU, not what stands in its place")
    return torch.device("cuda", 0)


@pytest.fixture
def natively(native: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators themselves, not what stands for them."""
    monkeypatch.setattr(torch.ops, "rdk", native)
    for name in OPERATORS:
        monkeypatch.setattr(rdk_cuda._ops, name, getattr(native, name))
    torch.use_deterministic_algorithms(False)
