"""Ends with an error unless the package of this checkout has its operators for CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import rdk_cuda

from .machine import ROOT


def main() -> int:
    info = rdk_cuda.build_info()
    if Path(rdk_cuda.__file__).parent != ROOT / "rdk_cuda":
        print(f"rdk_cuda is imported from {rdk_cuda.__file__}, not from this checkout")
    elif info["cuda"] is None:
        print(f"no CUDA operators: {info['cuda_reason']}")
    else:
        archs = " ".join(info["architectures"])
        print(f"rdk_cuda {info['version']} with CUDA {info['cuda']} operators for {archs}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
