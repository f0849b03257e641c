"""One suite for every backend: on the CPU, in the emulator and on a GPU.

A test that uses the fixture `device` runs on each of them as it stands: `torch.ops.rdk` is that
backend's operators, and takes tensors on the CPU. `cpu_or_cuda` leaves the emulator out.

Environment:
    RDK_GPU_TESTS_ON     Only "cuda" is left of the devices. cuda: fail where there is no GPU.
                         cpu or emulated: for work on these tests where there is none; the operators
                         for CPU, or the emulated kernels, take the GPU's place, and tests of
                         streams and graphs are skipped. (The emulator has no fake kernels, so
                         tests of refused devices fail there.)
    RDK_EMULATED_MODULE  Only the emulator is left, with these kernels: see emulated_operators.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

import rdk_cuda
from rdk_cuda import _ops as operators
from rdk_cuda._ops.contract import OPERATORS

from .gpu.stand_in import OnDevice

PLACE = os.environ.get("RDK_GPU_TESTS_ON") or ("cuda" if torch.cuda.is_available() else "")

# The emulator's: multiprocessors, bytes of shared memory of a block, blocks of a cluster.
MACHINES = {
    # Any batch is a large one: rows are not split, positions are verified in order.
    "large-batches": (1, 227 * 1024, 1),
    # Any batch is a small one: everything is split, drafts into clusters of blocks, and q' does not
    # fit in shared memory.
    "small-batches": (132, 1024, 8),
}
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
if "RDK_GPU_TESTS_ON" in os.environ:
    DEVICES = CPU_OR_CUDA = [GPU]
elif "RDK_EMULATED_MODULE" in os.environ:
    DEVICES, CPU_OR_CUDA = list(MACHINES), []
else:
    DEVICES, CPU_OR_CUDA = ["cpu", *MACHINES, GPU], ["cpu", GPU]


@pytest.fixture(scope="session")
def cpu() -> Any:
    """The operators as they are, also where `torch.ops.rdk` stands for something else."""
    return torch.ops.rdk


@pytest.fixture(scope="session")
def native(cpu: Any) -> Any:
    """The operators for tensors that are on the GPU, or where its place is taken."""
    if PLACE != "emulated":
        return cpu
    from .proof.emulated.emulated_operators import emulator

    emulator()
    return torch.ops.rdk_emulated


@pytest.fixture
def emulated(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`torch.ops.rdk` is the kernels; outputs start as NaN or the largest integer."""
    with in_the_emulator(monkeypatch) as module:
        yield module


@contextmanager
def in_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    from .proof.emulated.emulated_operators import emulator

    module = emulator()
    monkeypatch.setattr(torch.ops, "rdk", torch.ops.rdk_emulated)
    for name in OPERATORS:
        monkeypatch.setattr(operators, name, getattr(torch.ops.rdk_emulated, name))
    torch.use_deterministic_algorithms(True)
    yield module
    torch.use_deterministic_algorithms(False)
    module.set_machine()
    module.configure()
    module.fill_workspace(0xFF)


def set_machine(module: ModuleType, name: str, request: pytest.FixtureRequest) -> None:
    """A machine, scheduled by the test's name."""
    module.set_machine(*MACHINES[name])
    module.configure(seed=zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(params=MACHINES)
def kernels(request: pytest.FixtureRequest, emulated: ModuleType) -> ModuleType:
    """`emulated` on either machine."""
    set_machine(emulated, request.param, request)
    return emulated


@contextmanager
def on_a_gpu(native: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.ops.rdk` takes tensors on the CPU and runs on the device.

    Outputs and workspace start as NaN or the largest integer.
    """
    if not PLACE:
        pytest.skip("no GPU")
    stand_in = OnDevice(native, torch.device("cuda", 0) if PLACE == "cuda" else torch.device("cpu"))
    monkeypatch.setattr(torch.ops, "rdk", stand_in)
    for name in OPERATORS:
        monkeypatch.setattr(operators, name, getattr(stand_in, name))
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def on_device(native: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with on_a_gpu(native, monkeypatch):
        yield


@pytest.fixture(params=DEVICES)
def device(
    request: pytest.FixtureRequest, native: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Every backend in turn."""
    name: str = request.param
    if name == "cuda":
        with on_a_gpu(native, monkeypatch):
            yield name
    elif name in MACHINES:
        with in_the_emulator(monkeypatch) as module:
            set_machine(module, name, request)
            yield name
    else:
        yield name


@pytest.fixture(params=CPU_OR_CUDA)
def cpu_or_cuda(
    request: pytest.FixtureRequest, native: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """What needs more of PyTorch than the emulator has."""
    if request.param == "cuda":
        with on_a_gpu(native, monkeypatch):
            yield "cuda"
    else:
        yield "cpu"


def enable_cuda() -> None:
    """Or an error, where a GPU is asked for."""
    from rdk_cuda.integrations.cupy import nvrtc

    if PLACE not in ("", "cuda", "cpu", "emulated"):
        raise pytest.UsageError(f"RDK_GPU_TESTS_ON is {PLACE!r}; it must be cuda, cpu or emulated")
    if PLACE != "cuda":
        return
    if not torch.cuda.is_available():
        raise pytest.UsageError("RDK_GPU_TESTS_ON=cuda, but there is no GPU")
    try:
        nvrtc.enable()
    except (ImportError, RuntimeError) as error:
        reason = rdk_cuda.build_info()["cuda_reason"]
        raise pytest.UsageError(
            f"rdk_cuda was built without CUDA operators ({reason}); `make gpu-check "
            f"GPU_CHECK=build` builds them. Without: {error}"
        ) from error
