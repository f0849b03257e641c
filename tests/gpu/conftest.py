"""Tests of the operators on a GPU; `python3 -m tests.gpu`, `make gpu-check`, runs all of it.

Where there is no GPU, the modules are not even imported: each is one skipped test. Tests that need
no GPU, of what the others stand on, are in plumbing/. With a build without CUDA operators, it is
kernels through CuPy that are tested.

Environment:
    RDK_GPU_TESTS_ON  cuda: fail where there is no GPU. cpu or emulated: for work on these tests
                      where there is none; the operators for CPU, or the CUDA kernels in the
                      emulator, take the GPU's place, and tests of streams and graphs are skipped.
                      (The emulator has no fake kernels, so `test_device` of refusals fails there.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rdk_cuda
from rdk_cuda import _ops as operators
from rdk_cuda.integrations.cupy import nvrtc

from . import without_hypothesis  # noqa: F401  (before whatever imports hypothesis)
from .stand_in import OPERATORS, OnDevice

# isort: split
from tests.reference.conftest import _one_thread  # noqa: F401  (autouse)

FOLDER = Path(__file__).parent
PLACE = os.environ.get("RDK_GPU_TESTS_ON") or ("cuda" if torch.cuda.is_available() else "")


def pytest_configure() -> None:
    if PLACE not in ("", "cuda", "cpu", "emulated"):
        raise pytest.UsageError(f"RDK_GPU_TESTS_ON is {PLACE!r}; it must be cuda, cpu or emulated")
    if PLACE == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("RDK_GPU_TESTS_ON=cuda, but there is no GPU")
    if PLACE == "cuda":
        try:
            nvrtc.enable()
        except (ImportError, RuntimeError) as error:
            reason = rdk_cuda.build_info()["cuda_reason"]
            raise pytest.UsageError(
                f"rdk_cuda was built without CUDA operators ({reason}); `python3 -m tests.gpu "
                f"--part build` builds them. Without: {error}"
            ) from error


def pytest_report_header() -> str:
    return f"CUDA operators: {rdk_cuda.build_info()['cuda_backend']}"


class NoGpu(pytest.Item):
    """Stands for the tests of a module."""

    def runtest(self) -> None:
        pytest.skip("no GPU")


class ModuleWithoutGpu(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield NoGpu.from_parent(self, name="on a GPU")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    if PLACE or module_path.parent != FOLDER:
        return None
    collector: pytest.Collector = ModuleWithoutGpu.from_parent(parent, path=module_path)
    return collector


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", 0) if PLACE == "cuda" else torch.device("cpu")


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """For tests of what only a GPU has: streams, graphs, its memory."""
    if PLACE != "cuda":
        pytest.skip("needs a GPU, not what stands in its place")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def cpu() -> Any:
    """The operators as they are, for tensors on any device."""
    return torch.ops.rdk


@pytest.fixture
def native(cpu: Any) -> Any:
    """The operators for tensors on `device`."""
    if PLACE != "emulated":
        return cpu
    from tests.emulated.emulated_operators import emulator

    emulator()
    return torch.ops.rdk_emulated


@pytest.fixture
def natively(native: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators themselves, not what stands for them."""
    monkeypatch.setattr(torch.ops, "rdk", native)
    for name in ("redistribute", "draft", "verify", "gather_logits", "step_keys"):
        monkeypatch.setattr(rdk_cuda._ops, name, getattr(native, name))
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def on_device(
    cpu: Any, native: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """`torch.ops.rdk` takes tensors on the CPU and runs on the device.

    Outputs and workspace start as NaN or the largest integer.
    """
    stand_in = OnDevice(native, device)
    monkeypatch.setattr(torch.ops, "rdk", stand_in)
    for name in OPERATORS:
        monkeypatch.setattr(operators, name, getattr(stand_in, name))
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
