from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from .arithmetic import Arithmetic

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an object file of each `csrc/cpu/arithmetic_*.cpp`, and all of them linked."""
    folder = tmp_path_factory.mktemp("arithmetic")
    compiler = ["c++", "-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-I", str(ROOT / "csrc")]
    sources = sorted((ROOT / "csrc" / "cpu").glob("arithmetic_*.cpp"))
    for source in sources:
        object_file = folder / source.with_suffix(".o").name
        subprocess.run([*compiler, "-c", source, "-o", object_file], check=True)
    others = [
        ROOT / "csrc" / "cpu" / "capabilities.cpp",
        Path(__file__).with_name("arithmetic_functions.cpp"),
    ]
    objects = sorted(folder.glob("*.o"))
    library = folder / "arithmetic.so"
    subprocess.run([*compiler, "-shared", *others, *objects, "-o", library], check=True)
    return folder


@pytest.fixture(scope="session")
def arithmetics(compiled: Path) -> list[Arithmetic]:
    """One for each instruction set that this machine has, the best first."""
    library = ctypes.CDLL(str(compiled / "arithmetic.so"))
    return [Arithmetic(library, index) for index in range(library.available())]
