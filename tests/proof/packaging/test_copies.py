"""Copies of rdk_cuda beside each other, beside another torch, and older than its Python files."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hub_kernel
import rdk_cuda
from rdk_cuda._ops import library

from .distributions import ROOT, run

BINARY = ROOT / "rdk_cuda" / "_C.abi3.so"

# As `kernels.get_local_kernel` loads a package, and as it names it.
LOAD = """
import importlib.util, json, sys
from pathlib import Path

def load(variant):
    name = json.loads((Path(variant) / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, Path(variant) / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
USE = """
import torch
def tokens(package):
    affinity = package.Affinity.intersection(package.Vocabulary([4, 0, 2], target_size=5))
    logits = torch.arange(12.0).reshape(4, 3)
    drafted = package.draft(logits, affinity, seeds=7, positions=0)
    verified = package.verify(torch.ones(4, 2, 5), drafted, affinity)
    return torch.cat([package.redistribute(logits, affinity).flatten(), verified.tokens.flatten()])
"""


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a Hub kernel of this checkout."""
    return hub_kernel.write(tmp_path_factory.mktemp("hub") / "kernel")


def test_a_hub_kernel_and_the_installed_package_give_the_same_bits_in_one_process(
    variant: Path, tmp_path: Path
) -> None:
    code = f"""{LOAD}{USE}
hub = load({str(variant)!r})
assert "rdk_cuda" not in sys.modules and not hasattr(torch.ops.rdk, "draft")
alone = tokens(hub)
sys.path.insert(0, {str(ROOT)!r})
import rdk_cuda
assert torch.equal(alone, tokens(rdk_cuda)) and torch.equal(alone, tokens(hub))
compiled = torch.compile(lambda: tokens(hub), backend="aot_eager")
assert torch.equal(alone, compiled())
"""
    done = run(["-c", code], tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stderr


@pytest.mark.ci
def test_kernels_loads_the_hub_kernel(variant: Path, tmp_path: Path) -> None:
    """Installed apart, since Transformers changes where it finds `kernels`."""
    pip = ["-m", "pip", "install", "--quiet", "-c", "constraints.txt", "--target"]
    installed = run([*pip, str(tmp_path / "site"), "kernels"], ROOT)
    if "No matching distribution" in installed.stderr:
        pytest.skip("there is no index of packages to install kernels from")
    assert installed.returncode == 0, installed.stderr
    code = f"""{USE}
from pathlib import Path
from kernels import get_local_kernel
hub = get_local_kernel(Path({str(variant.parents[1])!r}), trust_remote_code=True)
print(tokens(hub).shape, hub.__name__)
"""
    environment = {"PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1"}
    done = run(["-c", code], tmp_path, **environment)
    assert "rdk_cuda_" in done.stdout, done.stderr


def test_every_module_of_a_hub_kernel_imports_the_copy_that_it_belongs_to(variant: Path) -> None:
    absolute = [
        f"{path.relative_to(variant)}:{number}"
        for path in variant.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.lstrip().startswith(("import rdk_cuda", "from rdk_cuda"))
        or 'import_module("rdk_cuda' in line
    ]
    assert absolute == []


def test_a_second_copy_under_the_same_name_is_refused_with_both_files(
    variant: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    shutil.copytree(variant, second)
    shutil.copy(ROOT / "rdk_cuda" / "_ops" / "contract.py", second / "_ops")
    code = f"{LOAD}\nimport rdk_cuda\nload({str(second)!r})"
    done = run(["-c", code], tmp_path, PYTHONPATH=str(ROOT))
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: rdk_cuda in {second} cannot be loaded: the one in ")
    assert str(ROOT / "rdk_cuda") in said


def test_a_binary_older_than_its_python_files_is_named_with_how_to_build(
    variant: Path, tmp_path: Path
) -> None:
    old = tmp_path / "rdk_cuda"
    shutil.copytree(variant, old)
    with (old / "_ops" / "contract.py").open("a") as file:
        file.write('\nOPERATORS["draft_twice"] = OPERATORS["draft"]\n')
    done = run(["-c", "import rdk_cuda"], tmp_path, PYTHONPATH="")
    said = done.stderr.splitlines()[-1]
    assert f"{old / BINARY.name} has no operator 'draft_twice': it is older than" in said
    assert said.endswith("or `python setup.py build_ext --inplace` in the source folder.")


@pytest.mark.parametrize(
    ("built", "has", "reason"),
    [
        (None, "13.0", "no nvcc"),
        ("13.0", None, f"built for CUDA 13.0, but torch {torch.__version__} has no CUDA"),
        ("13.0", "12.8", "is of CUDA 12.8: build rdk_cuda again beside it, or install a torch for"),
        ("13.0", "13.1", "the compiled kernels were not loaded: No module named 'rdk_cuda._cuda'"),
    ],
)
def test_compiled_kernels_that_do_not_fit_to_torch_leave_the_cpu_operators_and_a_reason(
    built: str | None, has: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rdk_cuda.build_info()["cuda"] is not None:
        pytest.skip("this build has CUDA operators")
    info = json.dumps({"cuda": built, "cuda_reason": "no nvcc"})
    monkeypatch.setattr(library, "_C", SimpleNamespace(build_info=lambda: info))
    monkeypatch.setattr(torch.version, "cuda", has)
    assert reason in library.load_kernels()


@pytest.mark.parametrize(
    ("cuda", "reason", "gpu", "warns"),
    [
        ("13.0", "there is no nvcc", True, True),
        ("13.0", "there is no nvcc", False, False),
        ("13.0", "RDK_CUDA=off", True, False),
        (None, "torch has no CUDA", True, False),
    ],
)
def test_a_gpu_that_is_not_served_is_said_at_import(
    cuda: str | None, reason: str, gpu: bool, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(library, "cuda_reason", reason)
    monkeypatch.setattr(library, "cuda_backend", lambda: None)
    monkeypatch.setattr(library, "GPU", Path("/dev/null" if gpu else "/nowhere"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.warn_of_a_gpu_that_is_not_served()
    assert len(caught) == warns
    assert not warns or f"no tensors on this machine's GPU: {reason}." in str(caught[0].message)


@pytest.mark.ci
def test_the_binary_runs_with_every_python_from_3_10_and_glibc_from_2_28() -> None:
    checked = pytest.importorskip("kernel_abi_check", reason="kernel-abi-check is not installed")
    file = checked.ObjectFile(str(BINARY))
    assert file.check_python_abi("3.10") == []
    assert file.check_manylinux("manylinux_2_28") == []
    assert file.check_manylinux("manylinux_2_5") != []
