"""The emulator's own kernels. Those of the operators are in `tests.devices`."""

from __future__ import annotations

from types import ModuleType

import pytest

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)

# Autouse; and the settings of hypothesis come with it.
from tests.operators.conftest import _one_thread  # noqa: F401

from .module_builder import EMULATOR, build_module, load_module

EMULATOR_KERNELS = [EMULATOR / "emulator_kernels.cu", EMULATOR / "emulator_module.cpp"]


@pytest.fixture(scope="session")
def emulator() -> ModuleType:
    """The emulator's own small kernels."""
    return load_module(build_module("emulator_kernels", EMULATOR_KERNELS))
