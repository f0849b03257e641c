"""Ends with an error unless the package beside the tests has its operators for CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import rdk_cuda

from .machine import ROOT
from .stand_in import OPERATORS


def main() -> int:
    info = rdk_cuda.build_info()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [name for name in OPERATORS if not has_kernel(f"rdk::{name}", "CUDA")]
    if Path(rdk_cuda.__file__).parent != ROOT / "rdk_cuda":
        print(f"rdk_cuda is imported from {rdk_cuda.__file__}, not from this checkout")
    elif missing:
        print(f"no CUDA kernels for {', '.join(missing)}: {info['cuda_reason']}")
    else:
        archs = " ".join(info["architectures"])
        print(f"rdk_cuda {info['version']} with CUDA {info['cuda']} operators for {archs}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
