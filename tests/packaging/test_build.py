"""The package builds in every documented way, says what it builds, and refuses what it cannot."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rdk_cuda

from .distributions import ROOT, run

pytestmark = pytest.mark.night

IMPORT = "import json, rdk_cuda; print(rdk_cuda.__file__); print(json.dumps(rdk_cuda.build_info()))"


def installed_info(site: Path, folder: Path) -> dict[str, object]:
    result = run(["-c", IMPORT], folder, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    file, info = result.stdout.strip().splitlines()
    assert Path(file).is_relative_to(site)
    parsed: dict[str, object] = json.loads(info)
    return parsed


def test_build_ext_inplace_says_what_it_builds_and_names_no_python_version(
    built: tuple[Path, str],
) -> None:
    source, log = built
    assert f"rdk_cuda {rdk_cuda.__version__}: building the CPU" in log
    assert "for torch 2.11 and later" in log
    assert (source / "rdk_cuda" / "_C.abi3.so").exists()
    assert installed_info(source, source)["version"] == rdk_cuda.__version__


def test_setup_py_install(built: tuple[Path, str], tmp_path: Path) -> None:
    source, _ = built
    result = run(["setup.py", "install", "--root", str(tmp_path / "root")], source)
    assert result.returncode == 0, result.stderr
    (package,) = (tmp_path / "root").rglob("rdk_cuda/__init__.py")
    assert installed_info(package.parents[1], tmp_path)["torch_target"] == "2.11"


def test_the_operators_import_where_only_torch_is_installed(tmp_path: Path) -> None:
    """`setup.py install` brings no dependencies; what needs one says which."""
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('safetensors', 'numpy', 'sklearn', 'nvtx')))"
    )
    code = f"""{blocked}
import torch, rdk_cuda
from rdk_cuda import calibration, decoding
affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
drafted = rdk_cuda.draft(torch.zeros(1, 3), affinity, seeds=0, positions=0)
rdk_cuda.verify(torch.zeros(1, 2, 5), drafted, affinity)
affinity.save("affinity.safetensors")
"""
    result = run(["-c", code], tmp_path, PYTHONPATH=str(ROOT))
    assert result.stderr.strip().endswith("pip install safetensors numpy")
    assert not list(tmp_path.iterdir())


def test_pip_install_without_build_isolation_brings_the_kernels_to_compile_at_run_time(
    built: tuple[Path, str], tmp_path: Path
) -> None:
    source, _ = built
    installed = tmp_path / "site"
    pip = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--quiet"]
    result = run([*pip, "--target", str(installed), "."], source)
    assert result.returncode == 0, result.stderr
    installed_info(installed, tmp_path)
    (wheel,) = installed.glob("rdk_cuda-*.dist-info/WHEEL")
    assert "cp310-abi3" in wheel.read_text()
    assert (installed / "rdk_cuda" / "py.typed").exists()
    csrc = ROOT / "csrc"
    cuda = [*(csrc / "cuda").glob("*.h"), *(csrc / "cuda").glob("*.cu*")]
    needed = [*csrc.glob("*.h"), *(csrc / "common").iterdir(), *cuda]
    for path in needed:
        copy = installed / "rdk_cuda" / path.relative_to(ROOT)
        assert copy.read_bytes() == path.read_bytes()
    code = "from rdk_cuda.integrations.cupy.nvrtc import sources; print(sources())"
    result = run(["-c", code], tmp_path, PYTHONPATH=str(installed))
    assert Path(result.stdout.strip()) == installed / "rdk_cuda" / "csrc" / "cuda"
    pytest.importorskip("cupy", reason="CuPy is not installed")
    code = (
        "from rdk_cuda.integrations.cupy.nvrtc import compile_kernel\n"
        "print(compile_kernel('step_keys_kernel', '80').symbol)"
    )
    environment = {"PYTHONPATH": str(installed), "RDK_CACHE_DIR": str(tmp_path / "cache")}
    result = run(["-c", code], tmp_path, **environment)
    assert "step_keys_kernel" in result.stdout, result.stderr


# As setuptools 69 and 75 do, which know nothing of PEP 639.
OLD_SETUPTOOLS = """
import runpy, sys, setuptools
from setuptools.config import pyprojecttoml
def reject(*_):
    raise ValueError("invalid pyproject.toml config: `project.license`.")
setuptools.__version__, pyprojecttoml.apply_configuration = "75.8.2", reject
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
"""


def test_a_setuptools_that_rejects_the_licence_still_builds_in_place(
    built: tuple[Path, str],
) -> None:
    source, _ = built
    binary = source / "rdk_cuda" / "_C.abi3.so"
    before = binary.read_bytes()
    binary.unlink()
    result = run(["-c", OLD_SETUPTOOLS, "build_ext", "--inplace"], source)
    assert result.returncode == 0, result.stderr
    assert binary.read_bytes() == before


@pytest.mark.parametrize("command", ["bdist_wheel", "install", "editable_wheel", "sdist"])
def test_a_setuptools_that_rejects_the_licence_makes_no_package(source: Path, command: str) -> None:
    """It would have no name and no requirements."""
    result = run(["-c", OLD_SETUPTOOLS, command], source)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].startswith(
        f"rdk_cuda needs setuptools 77 or later for '{command}'; this is 75.8.2."
    )


@pytest.mark.parametrize(
    ("command", "environment", "ends_with"),
    [
        ("--version", {"RDK_CUDA": "maybe"}, "RDK_CUDA is 'maybe'; it must be auto, on or off."),
        (
            "build_kernels",
            {"PATH": "/nowhere"},
            "Compiling the kernels needs nvcc of CUDA 12 or later on the PATH; it is not there.",
        ),
        pytest.param(
            *(
                "--version",
                {"RDK_CUDA": "on"},
                f"RDK_CUDA=on, but torch {torch.__version__} has no",
            ),
            marks=pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA"),
        ),
    ],
)
def test_what_cannot_be_built_is_refused(
    source: Path, command: str, environment: dict[str, str], ends_with: str
) -> None:
    result = run(["setup.py", command], source, **environment)
    assert result.returncode != 0
    assert ends_with in result.stderr.strip().splitlines()[-1]


TORCH_LIBRARIES = Path(torch.__file__).parent / "lib"

# A torch with CUDA as far as setup.py can tell; its headers are the same.
WITH_CUDA = """
import runpy, sys, torch
torch.version.cuda = "13.0"
sys.argv = ["setup.py", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture
def nvcc_of_cuda_12(tmp_path: Path) -> str:
    """A PATH on which nvcc says that it is 12.8's."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    return f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}"


ANOTHER_CUDA = (
    f"nvcc is of CUDA 12.8 and torch {torch.__version__} of CUDA 13.0: put an nvcc of CUDA 13 "
    "first on the PATH, or install a torch for the CUDA of nvcc"
)


def test_an_nvcc_of_another_cuda_than_torchs_builds_no_cuda_operators(
    source: Path, nvcc_of_cuda_12: str
) -> None:
    asks = WITH_CUDA.replace('"build_ext", "--inplace"', '"--version"')
    result = run(["-c", asks], source, PATH=nvcc_of_cuda_12)
    assert result.returncode == 0, result.stderr
    assert f"building the CPU operators only ({ANOTHER_CUDA})" in result.stderr
    result = run(["-c", asks], source, PATH=nvcc_of_cuda_12, RDK_CUDA="on")
    assert result.returncode != 0
    assert f"RDK_CUDA=on, but {ANOTHER_CUDA}." in result.stderr
    same = asks.replace("13.0", "12.6")
    result = run(["-c", same], source, PATH=nvcc_of_cuda_12, RDK_CUDA="on")
    assert "building the CPU and CUDA 12.6 operators" in result.stderr


# What only libtorch_cuda.so has, which a torch without CUDA lacks.
OF_TORCH_CUDA = "aoti_torch_get_current_cuda_stream"


@pytest.fixture
def torch_cuda(tmp_path: Path) -> Path:
    """The folder of a libtorch_cuda.so: torch's own, or one with the symbol that is used of it."""
    if (TORCH_LIBRARIES / "libtorch_cuda.so").exists():
        return TORCH_LIBRARIES
    source = tmp_path / "torch_cuda.c"
    source.write_text(f"int {OF_TORCH_CUDA}(int device, void** stream) {{ return 1; }}\n")
    library = tmp_path / "libtorch_cuda.so"
    command = ["g++", "-shared", "-fPIC", "-xc", source, "-o", library, f"-Wl,-h,{library.name}"]
    subprocess.run(command, check=True)
    return tmp_path


def test_with_a_cuda_torch_the_kernels_are_in_the_binary(
    source: Path, tmp_path: Path, torch_cuda: Path
) -> None:
    """Compiled and linked, not run: what is left open is torch's own, and from where it is said."""
    if shutil.which("nvcc") is None or shutil.which("nm") is None:
        pytest.skip("nvcc or nm is not installed")
    copy = tmp_path / "rdk_cuda"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.so"))
    environment = {"RDK_CUDA": "on", "RDK_ARCHS": "90a", "LDFLAGS": f"-L{torch_cuda}"}
    result = run(["-c", WITH_CUDA], copy, **environment)
    assert result.returncode == 0, result.stderr
    assert "building the CPU and CUDA 13.0 operators" in result.stderr
    binary = copy / "rdk_cuda" / "_C.abi3.so"
    symbols = subprocess.run(
        ["nm", "-D", binary], check=True, capture_output=True, text=True
    ).stdout
    undefined = set(re.findall(r" U (\w+)", symbols))
    torch_cpu = ctypes.CDLL(str(TORCH_LIBRARIES / "libtorch_cpu.so"))
    torch_symbols = {name for name in undefined if name.startswith(("aoti_torch", "torch_"))}
    missing = {name for name in torch_symbols if not hasattr(torch_cpu, name)}
    assert missing <= {OF_TORCH_CUDA}
    assert OF_TORCH_CUDA in undefined
    # A CUDA torch loads its libraries for itself: what is not named here is not found on import.
    assert b"libtorch_cuda.so\0" in binary.read_bytes()
    assert [name for name in undefined if name.startswith("cuda")] == []
    assert re.findall(r" T (cuda\w+)", symbols) == []


def test_no_macro_is_used_that_torch_2_11_lacks() -> None:
    """A build sees one torch's headers, and the tests rarely the oldest's.

    These were read in 2.11's.
    """
    used = {
        name
        for path in (ROOT / "csrc").rglob("*.*")
        for name in re.findall(r"\b(?:STABLE_|AOTI_|STD_)*TORCH_[A-Z_]+\b", path.read_text())
    }
    assert used == {
        "STABLE_TORCH_LIBRARY_FRAGMENT",
        "STABLE_TORCH_LIBRARY_IMPL",
        "TORCH_BOX",
        "TORCH_ERROR_CODE_CHECK",
    }


def test_import_without_the_compiled_module_says_how_to_build_it(
    source: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "rdk_cuda"
    shutil.copytree(source / "rdk_cuda", bare, ignore=shutil.ignore_patterns("*.so"))
    result = run(["-c", "import rdk_cuda"], tmp_path)
    assert result.returncode != 0
    assert "python setup.py build_ext --inplace" in result.stderr
    assert "pip install --no-build-isolation ." in result.stderr


def test_the_binary_uses_nothing_of_torch_but_its_stable_abi() -> None:
    """Undefined symbols of C++ torch (c10::, at::, torch::) would tie it to one release."""
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    binary = Path(rdk_cuda.__file__).with_name("_C.abi3.so")
    lines = subprocess.run(
        ["nm", "-DC", "--undefined-only", binary], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    symbols = [line.split(maxsplit=1)[1] for line in lines]
    assert any(symbol.startswith("aoti_torch_") for symbol in symbols)
    unstable = [s for s in symbols if s.startswith(("c10::", "at::", "torch::"))]
    assert unstable == []
