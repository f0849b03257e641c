"""Builds the operators of rdk_cuda. Metadata is in pyproject.toml.

`python setup.py build_kernels` compiles the CUDA kernels alone, for every architecture and with
any torch, and prints the registers and memory that they take.

Environment:
    RDK_CUDA   auto (default): CUDA operators if this torch has CUDA, nvcc is found and the sources
               have CUDA kernels; on: refuse to build without; off: CPU operators only.
    RDK_ARCHS  CUDA architectures, separated by spaces or semicolons (80 86 89 90a 100 120).
    MAX_JOBS   how many files are compiled at once.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

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


def cuda_decision() -> tuple[bool, str]:
    """Whether the CUDA operators are built, and the reason in words."""
    switch = os.environ.get("RDK_CUDA", "auto")
    if switch not in ("auto", "on", "off"):
        sys.exit(f"RDK_CUDA is {switch!r}; it must be auto, on or off.")
    if switch == "off":
        return False, "RDK_CUDA=off"
    missing = []
    if torch.version.cuda is None:
        missing.append(f"torch {torch.__version__} has no CUDA")
    if shutil.which("nvcc") is None:
        missing.append("nvcc is not on the PATH")
    if torch.version.cuda is not None and not missing:
        # The runtime that is linked is nvcc's. One of a later major version than torch's fails at
        # the first launch on drivers that are new enough for torch.
        major, compiler = torch.version.cuda.split(".")[0], kernels.nvcc_version()
        if compiler.split(".")[0] != major:
            missing.append(
                f"nvcc is of CUDA {compiler} and torch {torch.__version__} of CUDA "
                f"{torch.version.cuda}: put an nvcc of CUDA {major} first on the PATH, or install "
                "a torch for the CUDA of nvcc"
            )
    if missing and switch == "on":
        sys.exit(f"RDK_CUDA=on, but {' and '.join(missing)}.")
    return not missing, " and ".join(missing) or "torch has CUDA and nvcc is there"


def build_info() -> dict[str, object]:
    """What rdk_cuda.build_info() will report; compiled into the module."""
    with_cuda, reason = cuda_decision()
    return {
        "version": VERSION,
        "torch_target": ".".join(map(str, TORCH_TARGET)),
        "built_with_torch": torch.__version__,
        "cuda": torch.version.cuda if with_cuda else None,
        "cuda_reason": reason,
        "architectures": kernels.architectures() if with_cuda else [],
    }


def extension(info: dict[str, object]) -> Extension:
    """The one extension module: stable ABI of torch, limited API of Python."""
    torch_target = f"0x{TORCH_TARGET[0]:02x}{TORCH_TARGET[1]:02x}000000000000"
    with_cuda = info["cuda"] is not None
    macros: list[tuple[str, str | None]] = [("TORCH_TARGET_VERSION", torch_target)]
    cuda: dict[str, list[str]] = {}
    if with_cuda:
        include, library = kernels.toolkit_folders()
        macros.append(("RDK_WITH_CUDA", None))
        # torch_cuda has the current stream. The static runtime, as nvcc itself links it: no tie to
        # the one that torch brings.
        cuda = {
            "include_dirs": [str(include)],
            "library_dirs": [str(library)],
            "libraries": ["torch_cuda", "cudart_static", "rt", "pthread", "dl"],
            "extra_link_args": ["-Wl,--exclude-libs,libcudart_static.a"],
        }
    sources = [
        *sorted((ROOT / "csrc").glob("*.cpp")),
        *sorted((ROOT / "csrc" / "cpu").glob("*.cpp")),
        *sorted((ROOT / "csrc" / "ops").glob("*.cpp")),
        *sorted((ROOT / "csrc" / "cuda").glob("*.cpp")),
    ]
    other_way_to_start = "backend_python.cpp" if with_cuda else "backend_cuda.cpp"
    sources = [path for path in sources if path.name != other_way_to_start]
    extension: Extension = CppExtension(
        "rdk_cuda._C",
        [str(path.relative_to(ROOT)) for path in sources],
        depends=[
            str(path.relative_to(ROOT))
            for pattern in ("*.h", "*.def", "*.cu", "*.cuh")
            for path in sorted((ROOT / "csrc").rglob(pattern))
        ],
        define_macros=macros,
        extra_compile_args={
            "cxx": [
                "-O3",
                "-g0",  # Python's own flags have -g: 7 of the 7.7 MB of the extension
                "-std=c++17",
                "-fvisibility=hidden",
                # One rounding for each operation: tokens must not depend on what a compiler fuses.
                "-ffp-contract=off",
                f"-DRDK_BUILD_INFO={json.dumps(json.dumps(info))}",
            ]
        },
        py_limited_api=True,
        **cuda,
    )
    return extension


class BuildExtension(TorchBuildExtension):  # type: ignore[misc]
    """Compiles the kernels first, and links them into the extension."""

    def build_extensions(self) -> None:
        """As torch does it, with the kernels' objects."""
        if INFO["cuda"]:
            folder = Path(self.build_temp).resolve() / "kernels"
            objects = kernels.compile_objects(folder, kernels.architectures())
            self.extensions[0].extra_objects = [str(path) for path in objects]
        super().build_extensions()


class BuildPython(build_py):  # type: ignore[misc]
    """Puts the kernels' sources into the package, for CuPy to compile at run time."""

    def kernel_sources(self) -> dict[Path, Path]:
        """From where in the package's build folder; none where the checkout is used as it is."""
        csrc = ROOT / "csrc"
        cuda = [*(csrc / "cuda").glob("*.h"), *(csrc / "cuda").glob("*.cu*")]
        files = [*csrc.glob("*.h"), *(csrc / "common").iterdir(), *cuda]
        package = Path(self.build_lib) / "rdk_cuda"
        return {} if self.editable_mode else {package / f.relative_to(ROOT): f for f in files}

    def run(self) -> None:
        """As setuptools does it, and these files."""
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
    ext_modules=[extension(INFO)],
    cmdclass={
        "build_ext": BuildExtension,
        "build_kernels": BuildKernels,
        "build_py": BuildPython,
    },
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
