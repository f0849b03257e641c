"""What figures were measured with."""

import platform
from typing import Any

import torch
import transformers

import rdk_cuda


def versions() -> dict[str, Any]:
    """Versions, machine, threads, and how the operators were built."""
    return {
        "rdk_cuda": rdk_cuda.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "build": rdk_cuda.build_info(),
    }
