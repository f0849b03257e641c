"""torch.ops.rdk_emulated.*: the CUDA kernels' own source, run by the emulator on CPU tensors.

Environment:
    RDK_EMULATED_MODULE  what `build` returned elsewhere, to be used in place of this tree's
                         kernels: sanitized ones, or ones that tests/proof/mutation has broken.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

from .module_builder import OPTIMIZE, build_module, load_module

CSRC = Path(__file__).resolve().parents[3] / "csrc"


def build(csrc: Path = CSRC, sanitize: bool = False, optimize: Sequence[str] = OPTIMIZE) -> Path:
    """Compiles the operators of a source tree; see `build_module`."""
    operators = sorted((csrc / "ops").glob("*.cpp"))
    return build_module(
        "rdk_emulated",
        [
            # In place of ops/backend.cpp and backend_cuda.cpp.
            Path(__file__).with_name("operators_module.cpp"),
            *(path for path in operators if path.stem not in ("backend", "backend_cuda")),
            *sorted((csrc / "cuda").glob("*.cpp")),
            *sorted((csrc / "cuda").glob("*.cu")),
        ],
        [csrc, *map(Path, cpp_extension.include_paths())],
        sanitize=sanitize,
        optimize=optimize,
        definitions=["TORCH_TARGET_VERSION=0x020b000000000000"],
        libraries=[Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"],
    )


@functools.cache
def emulator() -> ModuleType:
    """The module that configures machine and schedule; loading it registers the operators."""
    built = os.environ.get("RDK_EMULATED_MODULE")
    return load_module(Path(built) if built else build())
