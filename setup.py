"""Builds the operators of rdk_cuda. Metadata is in pyproject.toml.

`python setup.py build_kernels` compiles the CUDA kernels alone, for every architecture and with
any torch, and prints the registers and memory that they take.

Environment:
    RDK_CUDA   auto (default): CUDA operators if this torch has CUDA and an nvcc of the same major
               version is found; on: refuse to build without nvcc, whatever this torch has; off: CPU
               operators only.
    RDK_ARCHS  CUDA architectures, separated by spaces or semicolons (80 86 89 90a 100 120), or
               native: those of the GPUs that are here. Without it, TORCH_CUDA_ARCH_LIST counts.
    CUDA_HOME  where nvcc is looked for first.
    CXX        the C++ compiler, also nvcc's.
    MAX_JOBS   how many files are compiled at once.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import setuptools
from setuptools import Command, Distribution, Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PYTHON_TARGET = (3, 10)
TORCH_TARGET = (2, 11)
SETUPTOOLS_TARGET = 77  # the first to accept the licence as pyproject.toml gives it (PEP 639)

sys.path.insert(0, str(ROOT))  # pip runs this file without its folder
import build_kernels as kernels  # noqa: E402

if not sys.platform.startswith("linux"):
    sys.exit(f"rdk_cuda builds on Linux only; this is {sys.platform}.")
if sys.version_info < PYTHON_TARGET:
    sys.exit(f"rdk_cuda needs Python 3.10 or later; this is {sys.version.split()[0]}.")
if not os.access(ROOT, os.W_OK) and any(not each.startswith("-") for each in sys.argv[1:]):
    sys.exit(
        f"{ROOT} cannot be written, and a build writes there. Build a copy: "
        f"cp -r '{ROOT}' /tmp/rdk_cuda && pip install --no-build-isolation /tmp/rdk_cuda"
    )
try:
    import torch
    from torch.utils.cpp_extension import BuildExtension as TorchBuildExtension
    from torch.utils.cpp_extension import CppExtension
except ImportError as error:
    sys.exit(
        f"rdk_cuda needs torch 2.11 or later to build ({error}). "
        "Install torch first, then build with `pip install --no-build-isolation .`"
    )
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < TORCH_TARGET:
    sys.exit(f"rdk_cuda needs torch 2.11 or later; this is torch {torch.__version__}.")


VERSION = kernels.assigned("__init__.py", "__version__")


def cuda_decision() -> tuple[str | None, str]:
    """The nvcc that compiles the CUDA operators, if they are built, and the reason in words."""
    switch = os.environ.get("RDK_CUDA", "auto")
    if switch not in ("auto", "on", "off"):
        sys.exit(f"RDK_CUDA is {switch!r}; it must be auto, on or off.")
    if switch == "off":
        return None, "RDK_CUDA=off"
    if torch.version.cuda is None and switch == "auto":
        return None, f"torch {torch.__version__} has no CUDA"
    if not kernels.nvccs():
        missing = f"there is no nvcc {kernels.PLACES}"
    else:
        major = (torch.version.cuda or "").split(".")[0] or None
        nvcc = kernels.find_nvcc(major)
        version = kernels.nvcc_version(nvcc)
        if major in (None, version.split(".")[0]):
            return nvcc, f"{nvcc} is of CUDA {version}"
        # The runtime that is linked is nvcc's. One of a later major version than torch's fails at
        # the first launch on drivers that are new enough for torch.
        missing = (
            f"{nvcc} is of CUDA {version} and torch {torch.__version__} of CUDA "
            f"{torch.version.cuda}: set CUDA_HOME to the folder of a CUDA {major}, or install a "
            "torch for the CUDA of nvcc"
        )
    if switch == "on":
        sys.exit(f"RDK_CUDA=on, but {missing}.")
    return None, missing


NVCC, CUDA_REASON = cuda_decision()


def build_info() -> dict[str, Any]:
    """What rdk_cuda.build_info() will report; compiled into the module."""
    return {
        "version": VERSION,
        "torch_target": ".".join(map(str, TORCH_TARGET)),
        "built_with_torch": torch.__version__,
        "cuda": kernels.nvcc_version(NVCC) if NVCC else None,
        "cuda_reason": CUDA_REASON,
        "architectures": kernels.architectures(NVCC) if NVCC else [],
    }


FLAGS = [
    "-O3",
    "-g0",  # Python's own flags have -g: 7 of the 7.7 MB of the extension
    "-std=c++17",
    "-fvisibility=hidden",
    # One rounding for each operation: tokens must not depend on what a compiler fuses.
    "-ffp-contract=off",
]
HEADERS = [
    str(path.relative_to(ROOT))
    for pattern in ("*.h", "*.def", "*.cu", "*.cuh")
    for path in sorted((ROOT / "csrc").rglob(pattern))
]
CUDA_MODULE = "csrc/ops/backend_cuda.cpp"


def operators(info: dict[str, Any]) -> Extension:
    """Everything but compiled kernels: stable ABI of torch, limited API of Python."""
    sources = [
        str(path.relative_to(ROOT))
        for folder in ("", "cpu", "ops", "cuda")
        for path in sorted((ROOT / "csrc" / folder).glob("*.cpp"))
    ]
    # Symbols of an old glibc, so that one binary serves them all (csrc/cpu/old_glibc.cpp).
    old = platform.libc_ver()[0] == "glibc" and platform.machine() in ("x86_64", "aarch64")
    wrapped = ["-Wl,--wrap=exp,--wrap=log"] if old else []
    made: Extension = CppExtension(
        "rdk_cuda._C",
        [source for source in sources if source != CUDA_MODULE],
        depends=HEADERS,
        define_macros=[
            ("TORCH_TARGET_VERSION", f"0x{TORCH_TARGET[0]:02x}{TORCH_TARGET[1]:02x}000000000000")
        ],
        extra_compile_args={"cxx": [*FLAGS, f"-DRDK_BUILD_INFO={json.dumps(json.dumps(info))}"]},
        extra_link_args=wrapped,
        py_limited_api=True,
    )
    return made


def compiled_kernels(nvcc: str) -> Extension:
    """The kernels and what starts them, with no library of torch; `BuildExtension` adds objects."""
    include, library = kernels.toolkit_folders(nvcc)
    made: Extension = Extension(
        "rdk_cuda._cuda",
        [CUDA_MODULE],
        depends=HEADERS,
        define_macros=[("Py_LIMITED_API", "0x030A0000")],
        include_dirs=[str(include)],
        library_dirs=[str(library)],
        # The static runtime, as nvcc itself links it: no tie to the one that torch brings.
        libraries=["cudart_static", "rt", "pthread", "dl"],
        extra_compile_args={"cxx": FLAGS},
        extra_link_args=["-Wl,--exclude-libs,libcudart_static.a"],
        py_limited_api=True,
    )
    return made


class BuildExtension(TorchBuildExtension):  # type: ignore[misc]
    """Compiles the kernels first, and links them into their extension."""

    def build_extensions(self) -> None:
        """As torch does it, with the kernels' objects."""
        compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
        if shutil.which(compiler) is None:
            sys.exit(
                f"rdk_cuda needs a C++17 compiler, and there is no {compiler}: install g++ "
                "(`apt-get install g++`), or set CXX."
            )
        if NVCC:
            folder = Path(self.build_temp).resolve() / "kernels"
            objects = kernels.compile_objects(folder, INFO["architectures"], NVCC)
            self.extensions[1].extra_objects = [str(path) for path in objects]
        super().build_extensions()


class BuildPython(build_py):  # type: ignore[misc]
    """Puts the kernels' sources into the package, for CuPy to compile at run time."""

    def kernel_sources(self) -> dict[Path, Path]:
        """From where in the package's build folder; none where the checkout is used as it is."""
        package = Path(self.build_lib) / "rdk_cuda"
        files = [] if self.editable_mode else kernels.run_time_sources()
        return {package / file.relative_to(ROOT): file for file in files}

    def run(self) -> None:
        """As setuptools does it, and these files, without what an earlier build has left."""
        if not self.editable_mode:
            for path in (Path(self.build_lib) / "rdk_cuda").rglob("*"):
                if path.is_file() and path.suffix != ".so":
                    path.unlink()
        super().run()
        for target, source in self.kernel_sources().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What was written."""
        return [*super().get_outputs(include_bytecode), *map(str, self.kernel_sources())]


class BuildKernels(Command):  # type: ignore[misc]
    """`python setup.py build_kernels`."""

    description = "compile the CUDA kernels for every architecture and print what they take"
    user_options: ClassVar = [
        ("json=", None, "also write registers and shared memory to this file")
    ]

    def initialize_options(self) -> None:
        """No file is written."""
        self.json: str | None = None

    def finalize_options(self) -> None:
        """Nothing is left to decide."""

    def run(self) -> None:
        """Compiles what has changed, then prints."""
        cubins = kernels.compile_cubins(ROOT / "build" / "kernels", kernels.architectures())
        found = kernels.resources(cubins)
        print(kernels.table(found))
        if self.json is not None:
            Path(self.json).write_text(kernels.golden(found), encoding="utf-8")


class WithoutMetadata(Distribution):  # type: ignore[misc]
    """For an older setuptools, which rejects pyproject.toml: what needs none of it still works."""

    COMMANDS = ("build_ext", "build_kernels", "clean")

    def parse_config_files(self, *_: object, **__: object) -> None:
        """Reads none."""

    def run_command(self, command: str) -> None:
        """As setuptools does it, or the end where a package without a name would come out."""
        if command not in self.COMMANDS:
            sys.exit(
                f"rdk_cuda needs setuptools {SETUPTOOLS_TARGET} or later for {command!r}; this is "
                f"{setuptools.__version__}. Run `pip install 'setuptools>=77,<82'`, or build in "
                "place, which any setuptools can: `python setup.py build_ext --inplace`"
            )
        super().run_command(command)


INFO = build_info()
WHAT = f"and CUDA {INFO['cuda']} operators" if INFO["cuda"] else "operators only"
print(
    f"rdk_cuda {INFO['version']}: building the CPU {WHAT} ({INFO['cuda_reason']}), "
    f"with torch {INFO['built_with_torch']}, for torch {INFO['torch_target']} and later.",
    file=sys.stderr,
    flush=True,
)
old = int(setuptools.__version__.split(".")[0]) < SETUPTOOLS_TARGET
setup(
    version=VERSION,
    distclass=WithoutMetadata if old else Distribution,
    ext_modules=[operators(INFO), *([compiled_kernels(NVCC)] if NVCC else [])],
    cmdclass={
        "build_ext": BuildExtension,
        "build_kernels": BuildKernels,
        "build_py": BuildPython,
    },
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
