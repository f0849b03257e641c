"""How many instructions each kernel has: kernel_code.json, next to this file.

`python -m tests.proof.packaging.kernel_code` compiles the kernels for one architecture and
writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import build_kernels
from rdk_cuda.files import write_json

from .sass import Instruction, instructions

TABLE = Path(__file__).with_suffix(".json")
ARCH = "90a"


def content(codes: dict[str, list[Instruction]]) -> dict[str, object]:
    """What the file holds."""
    kernels = {name: len(sequence) for name, sequence in sorted(codes.items())}
    nvcc = build_kernels.nvcc_version()
    return {"nvcc": nvcc, "architecture": f"sm_{ARCH}", "kernels": kernels}


def main() -> int:
    """Write the file; returns the exit code."""
    cubins = build_kernels.compile_cubins(build_kernels.ROOT / "build" / "kernels", [ARCH])
    codes = {
        build_kernels.readable(name): sequence
        for cubin in cubins.values()
        for name, sequence in instructions(cubin).items()
    }
    write_json(content(codes), TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
