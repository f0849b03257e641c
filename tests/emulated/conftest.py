"""The emulator's own kernels, and `torch.ops.rdk` as the emulated CUDA kernels.

With the fixture `kernels` a test of the operators is a test of the CUDA kernels: what it calls as
`torch.ops.rdk` runs their source, on either kind of machine, in a schedule of the test's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)

# Autouse; and the settings of hypothesis come with it.
from tests.reference.conftest import _one_thread  # noqa: F401

from .emulated_operators import emulator as operators_emulator
from .module_builder import EMULATOR, build_module, load_module

EMULATOR_KERNELS = [EMULATOR / "emulator_kernels.cu", EMULATOR / "emulator_module.cpp"]

# Multiprocessors, and bytes of shared memory that a block may have.
MACHINES = {
    # Any batch is a large one: rows are not split, positions are verified in order.
    "large-batches": (1, 227 * 1024),
    # Any batch is a small one: everything is split, and q' does not fit in shared memory.
    "small-batches": (132, 1024),
}

# Thousands of rows: a large batch on either machine, so once is enough.
LARGE_ANYWAY = {
    "test_a_token_of_the_smallest_mass_can_be_drawn",
    "test_ten_thousand_draws",
    "test_four_thousand_sequences",
    "test_the_direct_pass_is_what_the_reference_does",
    "test_a_residual_without_mass_is_drawn_from_p",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [
        item
        for item in items
        if getattr(item, "originalname", "") not in LARGE_ANYWAY or "small-batches" not in item.name
    ]


@pytest.fixture(scope="session")
def emulator() -> ModuleType:
    """The emulator's own small kernels."""
    return load_module(build_module("emulator_kernels", EMULATOR_KERNELS))


@pytest.fixture(scope="session")
def cpu() -> Any:
    """The operators for CPU, also where `torch.ops.rdk` stands for the kernels."""
    return torch.ops.rdk


@pytest.fixture
def emulated(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`torch.ops.rdk` is the kernels; outputs start as NaN or the largest integer."""
    module = operators_emulator()
    monkeypatch.setattr(torch.ops, "rdk", torch.ops.rdk_emulated)
    torch.use_deterministic_algorithms(True)
    yield module
    torch.use_deterministic_algorithms(False)
    module.set_machine()
    module.configure()


@pytest.fixture(params=MACHINES)
def kernels(request: pytest.FixtureRequest, emulated: ModuleType) -> ModuleType:
    """`emulated` on either machine, scheduled by the test's name."""
    emulated.set_machine(*MACHINES[request.param])
    emulated.configure(seed=zlib.crc32(request.node.nodeid.encode()))
    return emulated
