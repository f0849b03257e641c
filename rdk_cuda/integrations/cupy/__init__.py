"""The CUDA operators through CuPy, for a GPU without nvcc or a CUDA toolkit."""

from .nvrtc import compile, disable, enable

__all__ = ["compile", "disable", "enable"]
