"""The compiled libraries: `_C` has the operators, `_cuda` the kernels that nvcc compiled for GPUs.

Two copies of rdk_cuda may be loaded if their NAMESPACE differs (contract.py). `_cuda` is loaded
only beside a torch with CUDA of the same major version, and the CPU operators work beside any.
"""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .contract import NAMESPACE

PACKAGE = Path(__file__).resolve().parents[1]
PARENT = __name__.rsplit(".", 2)[0]
BUILD = (
    "`pip install --no-build-isolation .` or `python setup.py build_ext --inplace` in the source "
    "folder"
)
GPU = Path("/dev/nvidiactl")  # is there where NVIDIA's driver is
_FILE = "rdk_cuda_file"  # an attribute of torch.ops.NAMESPACE: which copy has registered it


def load_operators() -> Any:
    """Load `_C` and register its operators, unless another copy has taken their name.

    Raises:
        ImportError: it is not built, is older than the Python files beside it, or another copy of
            rdk_cuda has been loaded.
    """
    namespace = getattr(torch.ops, NAMESPACE)
    taken = vars(namespace).get(_FILE)
    if taken not in (None, str(PACKAGE)):
        raise ImportError(
            f"rdk_cuda in {PACKAGE} cannot be loaded: the one in {taken} has registered "
            f"torch.ops.{NAMESPACE} in this process. Keep one of them on Python's path."
        )
    name = f"{PARENT}._C"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"rdk_cuda in {PACKAGE} has no compiled operators. Build them with {BUILD}. If "
            "rdk_cuda is already installed, start Python outside of the source folder: its "
            "rdk_cuda/ hides the installed one."
        ) from error
    if taken is None:
        module.register(NAMESPACE)
        setattr(namespace, _FILE, str(PACKAGE))
    return module


def operator(name: str) -> Any:
    """`torch.ops.rdk.NAME`; ImportError where the library is older than the Python files."""
    try:
        return getattr(getattr(torch.ops, NAMESPACE), name)
    except AttributeError as error:
        raise ImportError(
            f"{_C.__file__} has no operator {name!r}: it is older than the Python files beside it. "
            f"Build it again with {BUILD}."
        ) from error


def load_kernels() -> str:
    """Load `_cuda` where it fits to torch; returns why CUDA tensors are served, or why not."""
    info = json.loads(_C.build_info())
    built, reason = info["cuda"], str(info["cuda_reason"])
    if built is None:
        return reason
    if torch.version.cuda is None:
        return f"built for CUDA {built}, but torch {torch.__version__} has no CUDA"
    major = built.split(".")[0]
    if torch.version.cuda.split(".")[0] != major:
        return (
            f"built for CUDA {built}, but torch {torch.__version__} is of CUDA "
            f"{torch.version.cuda}: build rdk_cuda again beside it, or install a torch for CUDA "
            f"{major}"
        )
    try:
        starter = import_module(f"{PARENT}._cuda").starter
        _C.set_starter(starter)
    except ImportError as error:
        return f"the compiled kernels were not loaded: {error}"
    return reason


def cuda_backend() -> str | None:
    """The starter of kernels for CUDA tensors: `"compiled"`, `"cupy"`, or None."""
    starter = _C.starter()
    if starter is None:
        return None
    return "compiled" if type(starter).__name__ == "PyCapsule" else "cupy"


def warn_of_a_gpu_that_is_not_served() -> None:
    """Warn at import, since the first call may be an hour away; RDK_CUDA=off was a decision."""
    unserved = torch.version.cuda is not None and cuda_backend() is None
    if unserved and cuda_reason != "RDK_CUDA=off" and GPU.exists():
        warnings.warn(
            f"rdk_cuda serves no tensors on this machine's GPU: {cuda_reason}. Build it again, "
            "with `pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps .`, "
            "or call rdk_cuda.integrations.cupy.enable().",
            stacklevel=2,
        )


_C = load_operators()
cuda_reason = load_kernels()
warn_of_a_gpu_that_is_not_served()
