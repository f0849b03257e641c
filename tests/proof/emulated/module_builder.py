"""Builds CUDA kernels, with the emulator, into modules that Python can call.

Each source is compiled by itself and kept by the content that the compiler sees, so a session that
builds a changed kernel (tests/proof/mutation) compiles no more than what the change touches.

Environment:
    RDK_EMULATION_CACHE  where compiled files are kept (default: a folder of this user in /tmp).
    CXX                  the compiler; g++ (default: g++).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pybind11

EMULATOR = Path(__file__).resolve().parent
EMULATOR_SOURCES = [
    EMULATOR / name
    for name in (
        "fiber.cpp",
        "global_memory.cpp",
        "kernel_attributes.cpp",
        "launch.cpp",
        "scheduler.cpp",
    )
]
LINKER_SCRIPT = EMULATOR / "shared_memory.ld"

COMPILE = [
    "-std=c++17",
    "-g1",
    "-fPIC",
    # Modules with the same kernels, changed or not, live in one process without sharing a symbol.
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-ffp-contract=off",
    "-DRDK_EMULATED",
]
OPTIMIZE = ["-O1"]  # -O2 compiles half as long again and runs no faster
SANITIZERS = ["-fsanitize=address,undefined"]
SANITIZE = [
    *SANITIZERS,
    "-O1",
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-fsanitize-sections=.noinit*",  # red zones between __shared__ variables
]
BINDING = ["-O1"]  # never sanitized, because that takes pybind11 three times as long


class BuildError(RuntimeError):
    """A compiler's or linker's complaint."""


def build_module(
    name: str,
    sources: Sequence[Path],
    include_dirs: Sequence[Path] = (),
    sanitize: bool = False,
    optimize: Sequence[str] = OPTIMIZE,
    definitions: Sequence[str] = (),
    libraries: Sequence[Path] = (),
) -> Path:
    """Compiles kernels (.cu) and their pybind11 module (.cpp), links them with the emulator.

    The module named `name` comes back as a file: for `load_module`, or with `sanitize`, where
    kernels and emulator are under AddressSanitizer and UBSan, for `run_sanitized`. Kernels see
    cuda_emulation.h first, and are compiled with `optimize` where there are no sanitizers. Raises
    BuildError with the compiler's own words.
    """
    defined = [f"-D{definition}" for definition in definitions]
    kernels = [*COMPILE, *(SANITIZE if sanitize else optimize), *defined]
    emulator = [*COMPILE, *(SANITIZE if sanitize else OPTIMIZE), *defined]
    binding = [*COMPILE, *BINDING, *defined]

    def compile_one(source: Path) -> Path:
        of_kernels = source.suffix == ".cu" or source.parent.name == "cuda"
        of_emulator = source in EMULATOR_SOURCES
        flags = kernels if of_kernels else emulator if of_emulator else binding
        return compile_source(source, include_dirs, flags)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, [*sources, *EMULATOR_SOURCES]))
    options = [f"-Wl,-T,{LINKER_SCRIPT}", *(SANITIZERS if sanitize else [])]
    return link_module(name, objects, libraries, options, LINKER_SCRIPT.read_bytes())


def link_module(
    name: str,
    objects: Sequence[Path],
    libraries: Sequence[Path],
    options: Sequence[str],
    also_depends_on: bytes = b"",
) -> Path:
    """Links what `compile_source` made; the module is kept by the content of all its parts."""
    names = [path.name.encode() for path in [*objects, *libraries]]
    key = digest([*names, also_depends_on])
    module = cache() / key / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    arguments = [*map(str, objects), "-shared", *options, *map(str, libraries)]
    with missing(module) as unfinished:
        if unfinished:
            run_compiler([*arguments, "-o", str(unfinished)])
    return module


def load_module(path: Path) -> ModuleType:
    """Imports a module that was built without sanitizers."""
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_sanitized(
    module: Path, script: str, *arguments: str, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a Python script that imports a module that was built with sanitizers."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=sanitizer_environment() | {"PYTHONPATH": str(module.parent), "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def sanitizer_environment() -> dict[str, str]:
    """In which a Python process can load what was built with sanitizers."""
    # libstdc++ too, because AddressSanitizer looks for its __cxa_throw when the process starts.
    libraries = [runtime_library("libasan.so"), runtime_library("libstdc++.so")]
    return os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def compile_source(source: Path, include_dirs: Iterable[Path], flags: Sequence[str]) -> Path:
    includes = [f"-I{path}" for path in (EMULATOR, source.parent, *include_dirs)]
    command = [*flags, *includes, f"-isystem{sysconfig.get_path('include')}"]
    command += [f"-isystem{pybind11.get_include()}", "-x", "c++"]
    if source.suffix == ".cu":
        command += ["-include", "cuda_emulation.h"]
    text = run_compiler([*command, "-E", str(source)])
    # The folder of a file is nothing that its code depends on.
    text = re.sub(rb'^(# \d+ ")[^"\n]*/', rb"\1", text, flags=re.MULTILINE)
    object_file = cache() / (digest([compiler_version(), *map(str.encode, flags), text]) + ".o")
    with missing(object_file) as unfinished:
        if unfinished:
            run_compiler([*command, "-c", str(source), "-o", str(unfinished)])
    return object_file


@contextmanager
def missing(path: Path) -> Iterator[Path | None]:
    """As `replacing`, or None where the file is there; others that want it wait for this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        with replacing(path) as unfinished:
            yield unfinished


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; the file appears complete or not at all, also with two writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{os.getpid()}-{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@functools.cache
def cache() -> Path:
    default = Path(tempfile.gettempdir()) / f"rdk_cuda_emulated_{os.getuid()}"
    folder = Path(os.environ.get("RDK_EMULATION_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set RDK_EMULATION_CACHE")
    return folder


def run_compiler(arguments: Sequence[str]) -> bytes:
    result = subprocess.run([compiler(), *arguments], capture_output=True)
    if result.returncode != 0:
        raise BuildError(result.stderr.decode(errors="replace"))
    return result.stdout


def compiler() -> str:
    return os.environ.get("CXX", "g++")


@functools.cache
def compiler_version() -> bytes:
    return run_compiler(["--version"])


def runtime_library(name: str) -> str:
    return os.path.realpath(run_compiler([f"-print-file-name={name}"]).decode().strip())


def digest(parts: Iterable[bytes]) -> str:
    value = hashlib.sha256()
    for part in parts:
        value.update(len(part).to_bytes(8, "little") + part)
    return value.hexdigest()[:24]
