"""A copy of the package and its tests with CPU operators of another source tree."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

from tests.proof.emulated.module_builder import compile_source, link_module

from .mutants import ROOT

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


def complete(csrc: Path) -> Path:
    """Put what pytest can be run in next to a source tree. Raises BuildError."""
    sources = [path for path in sorted(csrc.rglob("*.cpp")) if path.name != "backend_cuda.cpp"]
    includes = [csrc, *map(Path, cpp_extension.include_paths())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compile_source(source, includes, FLAGS), sources))
    module = link_module("_C", objects, [Path(torch.__file__).parent / "lib/libtorch_cpu.so"], [])
    without = shutil.ignore_patterns("_C.*", "__pycache__", "*.so")
    for name in ("rdk_cuda", "tests"):
        shutil.copytree(ROOT / name, csrc.parent / name, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", csrc.parent)
    shutil.copy(module, csrc.parent / "rdk_cuda" / "_C.abi3.so")
    return csrc.parent
