"""The operators as they ship, under AddressSanitizer and UBSan, for a process of their own.

They are registered as ``torch.ops.rdk_sanitized.*``, next to the ordinary ones.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

from tests.proof.emulated.emulated_operators import CSRC
from tests.proof.emulated.module_builder import (
    SANITIZERS,
    compile_source,
    link_module,
    sanitizer_environment,
)

NAMESPACE = "rdk_sanitized"
FLAGS = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-omit-frame-pointer",
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=all",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
]


def build(csrc: Path = CSRC) -> Path:
    """Compiles what setup.py compiles of a source tree for the CPU, but for the Python module."""
    sources = [
        *sorted(csrc.glob("cpu/**/*.cpp")),
        *(path for path in sorted(csrc.glob("ops/*.cpp")) if path.name != "backend_cuda.cpp"),
        *sorted(csrc.glob("cuda/*.cpp")),
    ]
    include_dirs = [csrc, *map(Path, cpp_extension.include_paths())]

    def compile_one(source: Path) -> Path:
        return compile_source(source, include_dirs, [*FLAGS, *SANITIZERS])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return link_module(NAMESPACE, objects, [library], SANITIZERS)


def environment() -> dict[str, str]:
    """Of a process that loads what `build` returns; allocations are followed for a few frames."""
    variables = sanitizer_environment()
    variables["ASAN_OPTIONS"] += ":malloc_context_size=4:quarantine_size_mb=16"
    return variables
