"""The CUDA operators through CuPy, for a GPU without nvcc or a CUDA toolkit.

A build without CUDA operators takes them from here: the same kernels, compiled at run time by NVRTC
when they are first called, kept on disk (`cubin_cache`), and started through CuPy on PyTorch's
current stream. How they are launched is decided in csrc/cuda, as for the compiled operators. It
needs the extra `[cupy]`, a CUDA build of torch, and a GPU of compute capability 8.0 or later.

Example:
    >>> import torch, rdk_cuda, rdk_cuda.integrations.cupy
    >>> if torch.cuda.is_available():
    ...     backend = rdk_cuda.integrations.cupy.enable()
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ... import _C
from ..._ops.library import cuda_backend
from . import cubin_cache
from .cubin_cache import Cubin

# nvcc is given the same (build_kernels.py). One rounding for each operation, so that a sum has the
# same bits in every kernel; and lines, by which profilers and sanitizers name what they find.
NAME = "rdk_cuda.integrations.cupy"  # in messages
VERSION: str = json.loads(_C.build_info())["version"]
OPTIONS = ("-std=c++17", "-fmad=false", "-lineinfo")


def enable() -> str:
    """Run kernels that CuPy compiles from now on, in calls with tensors on a GPU.

    A second call changes nothing. Operators that were built with CUDA stay in charge. Before a call
    is captured into a CUDA graph, make it once: that compiles and loads its kernel.

    Returns:
        What serves CUDA tensors, `"cupy"` or `"compiled"`.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: torch has no CUDA, or finds no GPU; or CuPy finds no NVRTC.
    """
    if (backend := cuda_backend()) is not None:
        return backend
    if torch.version.cuda is None:
        raise RuntimeError(
            f"{NAME}.enable: torch {torch.__version__} has no CUDA; install a CUDA build"
        )
    if not torch.cuda.is_available():
        raise RuntimeError(f"{NAME}.enable: torch finds no GPU")
    nvrtc_version()
    cuda = _cupy_cuda()
    _C.set_starter(
        Starter(
            cuda.driver,
            cuda.runtime,
            stream=lambda device: torch.cuda.current_stream(device).cuda_stream,
            capability=torch.cuda.get_device_capability,
            capturing=torch.cuda.is_current_stream_capturing,
        )
    )
    return "cupy"


def disable() -> None:
    """Refuse calls with tensors on a GPU from now on, as before `enable`."""
    if cuda_backend() == "cupy":
        _C.set_starter(None)


def compile(architecture: str) -> dict[str, Cubin]:
    """Compile every kernel, so that no process has to wait for it later. Needs no GPU.

    What is on disk already is not compiled again; all of them take some twenty seconds.

    Args:
        architecture: compute capability without the dot, such as `"80"` or `"90a"`, which is what
            `enable` uses on a GPU of 9.0.

    Returns:
        By kernel, such as `"draft_kernel<float, Whole>"`, its symbol and code.

    Raises:
        ValueError: that is no architecture.
        ImportError: CuPy is not installed.
        RuntimeError: CuPy finds no NVRTC; or NVRTC's messages where a kernel does not compile.
    """
    names = [name for entry in kernels().values() for name in entry["kernels"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = pool.map(lambda name: compile_kernel(name, architecture), names)
        return dict(zip(names, cubins, strict=True))


@functools.cache
def kernels() -> dict[str, dict[str, Any]]:
    """List each operator's kernels, their static shared memory, and the struct they take."""
    found: dict[str, dict[str, Any]] = json.loads(_C.kernels())
    return found


@functools.cache
def sources() -> Path:
    """Find the kernels' folder: in the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "csrc" / "cuda", package.parent / "csrc" / "cuda"):
        if folder.is_dir():
            return folder
    raise RuntimeError(
        f"{NAME}: {package / 'csrc'} lacks the kernels' sources; install rdk_cuda again"
    )


def compile_kernel(kernel: str, architecture: str) -> Cubin:
    """Compile one of `kernels()`, or load it from disk; raises as `compile` does."""
    if not re.fullmatch(r"\d{2,3}[af]?", architecture):
        raise ValueError(
            f"{NAME}: architecture is {architecture!r}; needs one such as '80' or '90a'"
        )
    operator = kernel.split("_kernel")[0]
    launch, size = kernels()[operator]["launch"], kernels()[operator]["launch_bytes"]
    program = (
        f'#include "{operator}.cu"\n'
        "using namespace rdk;\n"
        f'static_assert(sizeof({launch}) == {size}, "host and device must agree on {launch}");\n'
    )
    options = (*OPTIONS, f"-arch=sm_{architecture}")
    facts = (VERSION, str(nvrtc_version()), kernel, program, *options, *_source_texts())
    key = cubin_cache.digest(fact.encode() for fact in facts)
    cubin = cubin_cache.load(key)
    if cubin is None:
        cubin = run_nvrtc(program, kernel, (*options, f"-I{sources()}"))
        cubin_cache.save(key, cubin)
    return cubin


def run_nvrtc(program: str, kernel: str, options: tuple[str, ...]) -> Cubin:
    """Compile a program and finds the kernel in it; RuntimeError has the compiler's messages."""
    nvrtc = _cupy_cuda().nvrtc
    handle = nvrtc.createProgram(program, "nvrtc.cu", (), ())
    try:
        nvrtc.addNameExpression(handle, kernel)
        nvrtc.compileProgram(handle, options)
        return Cubin(nvrtc.getLoweredName(handle, kernel), nvrtc.getCUBIN(handle))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(handle)
        raise RuntimeError(
            f"{NAME}: {kernel} does not compile with {' '.join(options)} ({error})\n{log}"
        ) from error
    finally:
        nvrtc.destroyProgram(handle)


def nvrtc_version() -> tuple[int, int]:
    """Return the version of the NVRTC that CuPy has found."""
    try:
        version: tuple[int, int] = _cupy_cuda().nvrtc.getVersion()
    except RuntimeError as error:
        raise RuntimeError(
            f"{NAME}: CuPy finds no NVRTC; `pip install nvidia-cuda-nvrtc` ({error})"
        ) from error
    return version


@functools.cache
def _source_texts() -> tuple[str, ...]:
    folder = sources()
    headers = folder.parent.glob("**/*.h")
    files = [*headers, *folder.glob("*.cu*")]
    return tuple(t for file in sorted(files) for t in (file.name, file.read_text(encoding="utf-8")))


def _cupy_cuda() -> Any:
    try:
        return import_module("cupy.cuda")
    except ImportError as error:
        major = (torch.version.cuda or "13").split(".")[0]
        raise ImportError(f"{NAME} needs CuPy: pip install cupy-cuda{major}x ({error})") from error


class Starter:
    """Compiles, loads and starts kernels for `rdk_cuda._C` (csrc/ops/backend_python.h).

    Args:
        driver, runtime: `cupy.cuda.driver` and `cupy.cuda.runtime`.
        stream: the address of a device's current stream.
        capability: a device's compute capability.
        capturing: whether the current stream is being captured into a graph.
    """

    def __init__(
        self,
        driver: Any,
        runtime: Any,
        stream: Callable[[int], int],
        capability: Callable[[int], tuple[int, int]],
        capturing: Callable[[], bool],
    ) -> None:
        self._driver, self._runtime = driver, runtime
        self._stream, self._capability, self._capturing = stream, capability, capturing
        self._machines: dict[int, tuple[int, int]] = {}
        self._functions: dict[tuple[str, int], int] = {}
        self._loading = threading.Lock()

    def machine(self, device: int) -> tuple[int, int]:
        """Return its multiprocessors, and the most bytes of shared memory of a block."""
        if device not in self._machines:
            attribute, runtime = self._runtime.deviceGetAttribute, self._runtime
            self._machines[device] = (
                attribute(runtime.cudaDevAttrMultiProcessorCount, device),
                attribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            )
        return self._machines[device]

    def start(
        self,
        kernel: str,
        blocks: int,
        threads: int,
        shared_bytes: int,
        allowed_bytes: int,
        launch: int,
        launch_bytes: int,
        device: int,
    ) -> None:
        """Start the kernel on the current stream.

        Args:
            allowed_bytes: of dynamic shared memory, which the kernel needs leave for before its
                first start on the device, and which is the same for all of them; 0: it needs none.
            launch: the address of the kernel's one argument, which it takes by value.
        """
        # The driver's calls take the thread's context, which a thread of its own may not have yet.
        self._runtime.setDevice(device)
        function = self._functions.get((kernel, device)) or self._load(
            kernel, device, allowed_bytes
        )
        arguments = ctypes.c_void_p(launch)
        self._driver.launchKernel(
            function,
            *(blocks, 1, 1),
            *(threads, 1, 1),
            shared_bytes,
            self._stream(device),
            ctypes.addressof(arguments),
            0,
        )

    def _load(self, kernel: str, device: int, allowed_bytes: int) -> int:
        """The kernel's function on the device, compiled if need be; modules are never unloaded.

        Nobody starts it before it is allowed its shared memory, and that never changes: another
        thread could be between a change and its launch.
        """
        with self._loading:
            if (kernel, device) in self._functions:
                return self._functions[kernel, device]
            if self._capturing():
                raise RuntimeError(
                    f"{kernel} is not loaded yet, and cannot be while a CUDA graph is captured; "
                    "make the call once before the capture"
                )
            cubin = compile_kernel(kernel, self._architecture(device))
            module = self._driver.moduleLoadData(cubin.code)
            function: int = self._driver.moduleGetFunction(module, cubin.symbol)
            if allowed_bytes > 0:
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function, attribute, allowed_bytes)
            self._functions[kernel, device] = function
            return function

    def _architecture(self, device: int) -> str:
        major, minor = self._capability(device)
        if major < 8:
            raise RuntimeError(
                f"cuda:{device} has compute capability {major}.{minor}; needs 8.0 or later"
            )
        return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"
