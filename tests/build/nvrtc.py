"""NVRTC by its C interface: NVIDIA's run-time compiler, which is on PyPI and needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from collections.abc import Sequence
from ctypes import byref
from pathlib import Path

PACKAGE = "nvidia-cuda-nvrtc"


def find_library() -> Path | None:
    """The compiler's library in the PyPI package."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
            return Path(str(file.locate()))
    return None


def compile_kernels(source: Path, arch: str, kernels: Sequence[str]) -> tuple[dict[str, str], int]:
    """Compiles a file with these kernels in it. Their symbols by name, and the cubin's bytes.

    Raises ValueError with the compiler's messages where it does not compile.
    """
    library = ctypes.CDLL(str(find_library()))
    program = ctypes.c_void_p()
    options = [f"-arch=sm_{arch}", f"-I{source.parent}", "-std=c++17"]
    text = source.read_bytes()
    library.nvrtcCreateProgram(byref(program), text, source.name.encode(), 0, None, None)
    try:
        for kernel in kernels:
            library.nvrtcAddNameExpression(program, kernel.encode())
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), arguments) != 0:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise ValueError(log.value.decode())
        symbols = {}
        for kernel in kernels:
            symbol = ctypes.c_char_p()
            library.nvrtcGetLoweredName(program, kernel.encode(), byref(symbol))
            symbols[kernel] = (symbol.value or b"").decode()
        cubin_bytes = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(program, byref(cubin_bytes))
        return symbols, cubin_bytes.value
    finally:
        library.nvrtcDestroyProgram(byref(program))
