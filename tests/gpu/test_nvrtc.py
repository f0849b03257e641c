"""A build without CUDA operators, with CuPy, passes the tests that a build with them passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .__main__ import ROOT

pytest.importorskip("cupy", reason="CuPy is not installed")

OURS = ["agreement", "cupy_arrays", "graphs", "invariance", "streams"]
MODULES = [f"tests/gpu/test_{name}.py" for name in OURS] + ["tests/operators/test_step_keys.py"]


@pytest.fixture(scope="module")
def without_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, built without CUDA operators."""
    copy = tmp_path_factory.mktemp("without_cuda") / "rdk_cuda"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "models", "*.so", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=copy,
        env=os.environ | {"RDK_CUDA": "off"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return copy


def test_kernels_that_cupy_compiles_pass(cuda: torch.device, without_cuda: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *MODULES],
        cwd=without_cuda,
        env=os.environ | {"RDK_GPU_TESTS_ON": "cuda"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "CUDA operators: cupy" in result.stdout
    assert " passed" in result.stdout
