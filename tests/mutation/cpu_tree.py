"""A copy of the package and its tests with CPU operators of another source tree."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

from tests.emulated.emulated_operators import CSRC
from tests.emulated.module_builder import compile_source, link_module

ROOT = CSRC.parent
INFO = {"version": "mutant", "torch_target": "2.11", "built_with_torch": "", "cuda": None,
        "cuda_reason": "mutant", "architectures": []}  # fmt: skip
FLAGS = [
    "-std=c++17",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    f"-DRDK_BUILD_INFO={json.dumps(json.dumps(INFO))}",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
    "-DPy_LIMITED_API=0x030A0000",
    "-DTORCH_EXTENSION_NAME=_C",
]


def build(csrc: Path) -> Path:
    """Compiles what differs from other builds. Raises BuildError."""
    folders = (csrc, csrc / "cpu", csrc / "ops", csrc / "cuda")
    sources = [path for folder in folders for path in sorted(folder.glob("*.cpp"))]
    sources = [path for path in sources if path.name != "backend_cuda.cpp"]
    includes = [csrc, *map(Path, cpp_extension.include_paths())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compile_source(source, includes, FLAGS), sources))
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return link_module("_C", objects, [torch_cpu], [])


def tree(folder: Path, module: Path) -> Path:
    """What pytest can be run in, with ``module`` as the package's extension."""
    without = shutil.ignore_patterns("_C.*", "__pycache__", "*.so")
    for name in ("rdk_cuda", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(module, folder / "rdk_cuda" / "_C.abi3.so")
    return folder
