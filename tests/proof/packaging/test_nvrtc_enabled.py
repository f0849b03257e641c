"""`rdk_cuda.integrations.cupy.enable` says what serves CUDA tensors, or what is missing for that.

There is no GPU here, so torch is made to say that there is one. No call is made: those are in
tests/proof/emulated/test_kernels_through_python.py and, on a GPU, in tests/gpu/test_nvrtc.py.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import rdk_cuda
from rdk_cuda import _C
from rdk_cuda._ops import library
from rdk_cuda.integrations.cupy import nvrtc

pytestmark = pytest.mark.night

if rdk_cuda.build_info()["cuda"] is not None:
    pytest.skip("this build has CUDA operators", allow_module_level=True)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield
    nvrtc.disable()


def backend() -> str | None:
    found: str | None = rdk_cuda.build_info()["cuda_backend"]
    return found


@pytest.mark.usefixtures("with_gpu")
def test_enabled_it_serves_cuda_tensors_until_it_is_disabled() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    assert backend() is None
    assert nvrtc.enable() == "cupy" == backend()
    assert nvrtc.enable() == "cupy" == backend()
    nvrtc.disable()
    nvrtc.disable()
    assert backend() is None


def test_compiled_operators_stay_in_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SimpleNamespace(
        build_info=_C.build_info,
        cpu_capability=_C.cpu_capability,
        starter=lambda: datetime.datetime_CAPI,  # a capsule
    )
    monkeypatch.setattr(library, "_C", compiled)
    assert nvrtc.enable() == "compiled" == backend()
    nvrtc.disable()
    assert backend() == "compiled"


@pytest.mark.usefixtures("with_gpu")
def test_what_is_missing_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_cuda = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")

    def missing() -> None:
        raise RuntimeError("no libnvrtc.so")

    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)
        with pytest.raises(RuntimeError, match="has no CUDA; install a CUDA build"):
            nvrtc.enable()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(RuntimeError, match="torch finds no GPU"):
            nvrtc.enable()
    with monkeypatch.context() as patch:
        patch.setattr(cupy_cuda.nvrtc, "getVersion", missing)
        with pytest.raises(RuntimeError, match=r"pip install nvidia-cuda-nvrtc.*no libnvrtc\.so"):
            nvrtc.enable()
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, None)
    for cuda, package in (("13.0", "cupy-cuda13x"), ("12.8", "cupy-cuda12x")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(ImportError, match=f"pip install {package}"):
            nvrtc.enable()
    assert backend() is None
