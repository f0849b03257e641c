"""The package builds in every documented way, says what it builds, and refuses what it cannot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
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


PLACES = "in CUDA_HOME, on the PATH or in /usr/local/cuda"
NO_TOOLKIT = """
import os, runpy, sys
os.environ["PATH"] = os.pathsep.join({!r})
sys.path.insert(0, "")
import build_kernels
build_kernels.DEFAULT_TOOLKIT = "/nowhere"
sys.argv = ["setup.py", {!r}]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("command", "environment", "ends_with"),
    [
        ("--version", {"RDK_CUDA": "maybe"}, "RDK_CUDA is 'maybe'; it must be auto, on or off."),
        ("--version", {"RDK_CUDA": "on"}, f"RDK_CUDA=on, but there is no nvcc {PLACES}."),
        (
            "build_kernels",
            {},
            f"Compiling the kernels needs nvcc of CUDA 12 or later, {PLACES}; it is not there.",
        ),
        (
            "build_kernels",
            {"RDK_ARCHS": "75"},
            "RDK_ARCHS has '75'; it needs compute capabilities from 80 on, such as 80 86 89 90a "
            "100 120, or native for those of this machine's GPUs.",
        ),
        (
            "build_kernels",
            {"RDK_ARCHS": "native"},
            "RDK_ARCHS is native, but nvidia-smi finds no GPU; name compute capabilities.",
        ),
        (
            "build_kernels",
            {"TORCH_CUDA_ARCH_LIST": "Ampere"},
            "TORCH_CUDA_ARCH_LIST has 'Ampere'; rdk_cuda reads numbers such as 8.0 and 9.0a. Set "
            "RDK_ARCHS to some of 80 86 89 90a 100 120, or to native.",
        ),
        (
            "build_ext",
            {"CXX": "no-compiler"},
            "rdk_cuda needs a C++17 compiler, and there is no no-compiler: install g++ (`apt-get "
            "install g++`), or set CXX.",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_remedy_in_the_last_line(
    source: Path, command: str, environment: dict[str, str], ends_with: str
) -> None:
    without = NO_TOOLKIT.format([f"{Path(sys.executable).parent}", "/nowhere"], command)
    result = run(["-c", without], source, **environment)
    assert result.returncode != 0
    assert result.stderr.strip().splitlines()[-1] == ends_with


def test_a_source_folder_that_cannot_be_written_is_refused_with_a_command(source: Path) -> None:
    code = """
import os, runpy, sys
os.access = lambda *_: False
sys.argv = ["setup.py", "bdist_wheel"]
runpy.run_path("setup.py", run_name="__main__")
"""
    result = run(["-c", code], source)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].endswith(
        f"cp -r '{source}' /tmp/rdk_cuda && pip install --no-build-isolation /tmp/rdk_cuda"
    )


def test_a_module_that_was_removed_is_not_in_the_next_wheel(source: Path) -> None:
    left = source / "build" / "lib.any" / "rdk_cuda" / "removed.py"
    left.parent.mkdir(parents=True)
    left.touch()
    library = left.with_name("_C.abi3.so")
    library.touch()
    result = run(["setup.py", "-q", "build_py", "--build-lib", "build/lib.any"], source)
    assert result.returncode == 0, result.stderr
    assert not left.exists()
    assert library.exists()
    assert left.with_name("__init__.py").exists()
    shutil.rmtree(left.parents[1])


def nvcc(folder: Path, version: str, knows: str = "80 86 89 90 100 120") -> Path:
    """A compiler that says that it is of this CUDA; returns its toolkit's folder."""
    path = folder / f"cuda-{version}" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    listed = "".join(f"compute_{arch}\\n" for arch in knows.split())
    path.write_text(
        f"#!/bin/sh\ncase $1 in --list-gpu-arch) printf '{listed}';;\n"
        f"-dryrun) echo '#$ TOP={path.parents[1]}' >&2;;\n"
        f"*) echo 'Cuda compilation tools, release {version}, V{version}.93';; esac\n"
    )
    path.chmod(0o755)
    return path.parents[1]


def decided(source: Path, cuda: str | None, path: Path, **environment: str) -> tuple[str, str]:
    """setup.py's decision beside a torch of this CUDA: the nvcc, and what it says."""
    code = f"""
import sys, torch
torch.version.cuda = {cuda!r}
import build_kernels
build_kernels.DEFAULT_TOOLKIT = "/nowhere"
sys.argv = ["setup.py", "--version"]
import setup
print(setup.NVCC, setup.INFO["architectures"])
"""
    result = run(["-c", code], source, PATH=f"{path}/bin", **environment)
    return result.stdout.strip().splitlines()[-1] if result.stdout else "", result.stderr


def test_nvcc_is_looked_for_where_torch_looks_and_torch_s_major_version_is_preferred(
    source: Path, tmp_path: Path
) -> None:
    twelve, thirteen = nvcc(tmp_path, "12.8"), nvcc(tmp_path, "13.0")
    nowhere = tmp_path / "nowhere"
    found, said = decided(source, "13.0", nowhere, CUDA_HOME=str(thirteen))
    assert found.startswith(f"{thirteen}/bin/nvcc ")
    assert f"the CPU and CUDA 13.0 operators ({thirteen}/bin/nvcc is of CUDA 13.0)" in said
    found, _ = decided(source, "13.1", twelve, CUDA_HOME=str(thirteen))
    assert found.startswith(f"{thirteen}/bin/nvcc ")
    found, _ = decided(source, "12.6", twelve, CUDA_HOME=str(thirteen))
    assert found.startswith(f"{twelve}/bin/nvcc ")
    # A torch without CUDA: only on request, as for a wheel.
    assert decided(source, None, twelve)[0].startswith("None ")
    assert decided(source, None, twelve, RDK_CUDA="on")[0].startswith(f"{twelve}/bin/nvcc ")


def test_an_nvcc_of_another_cuda_than_torchs_builds_no_cuda_operators(
    source: Path, tmp_path: Path
) -> None:
    twelve = nvcc(tmp_path, "12.8")
    refused = (
        f"{twelve}/bin/nvcc is of CUDA 12.8 and torch {torch.__version__} of CUDA 13.0: set "
        "CUDA_HOME to the folder of a CUDA 13, or install a torch for the CUDA of nvcc"
    )
    found, said = decided(source, "13.0", twelve)
    assert found.startswith("None ")
    assert f"building the CPU operators only ({refused})" in said
    assert f"RDK_CUDA=on, but {refused}." in decided(source, "13.0", twelve, RDK_CUDA="on")[1]


def test_architectures_are_those_that_are_asked_for_and_that_nvcc_knows(
    source: Path, tmp_path: Path
) -> None:
    old = nvcc(tmp_path, "12.4", knows="80 86 89 90")
    found, said = decided(source, "12.6", old)
    assert found.endswith("['80', '86', '89', '90a']")
    assert "nvcc 12.4 does not know 100 120: built without." in said
    listed = "7.5 8.0;9.0a+PTX"
    assert decided(source, "12.6", old, TORCH_CUDA_ARCH_LIST=listed)[0].endswith("['80', '90a']")
    both = {"TORCH_CUDA_ARCH_LIST": listed, "RDK_ARCHS": "89"}
    assert decided(source, "12.6", old, **both)[0].endswith("['89']")
    smi = old / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '9.0\\n9.0\\n12.0\\n'\n")
    smi.chmod(0o755)
    assert decided(source, "12.6", old, RDK_ARCHS="native")[0].endswith("['90a', '120']")


def test_the_kernels_are_in_a_library_of_their_own_that_needs_nothing_of_torch(
    source: Path, tmp_path: Path
) -> None:
    """Compiled and linked, not run; beside a torch without CUDA it says so."""
    if shutil.which("nvcc") is None or shutil.which("nm") is None:
        pytest.skip("nvcc or nm is not installed")
    copy = tmp_path / "rdk_cuda"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.so"))
    environment = {"RDK_CUDA": "on", "RDK_ARCHS": "90a"}
    result = run(["setup.py", "build_ext", "--inplace"], copy, **environment)
    assert result.returncode == 0, result.stderr
    binary = copy / "rdk_cuda" / "_cuda.abi3.so"
    symbols = subprocess.run(
        ["nm", "-D", binary], check=True, capture_output=True, text=True
    ).stdout
    undefined = set(re.findall(r" U (\w+)", symbols))
    assert [n for n in undefined if n.startswith(("cuda", "aoti_torch", "torch_"))] == []
    assert re.findall(r" T (\w+)", symbols) == ["PyInit__cuda"]
    code = "import rdk_cuda; print(rdk_cuda.build_info()); import rdk_cuda._cuda"
    result = run(["-c", code], copy)
    if torch.version.cuda is None:
        assert f"but torch {torch.__version__} has no CUDA" in result.stdout
        assert "ImportError: this torch has no CUDA" in result.stderr


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
        "AOTI_TORCH_SUCCESS",
        "TORCH_ABI_VERSION",
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
