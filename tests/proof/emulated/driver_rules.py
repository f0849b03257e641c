"""What CUDA's driver allows a launch: shared memory, and blocks that a GPU runs at once.

The rules are those of CUDA 13.0's `cuda.h` (`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`) and,
for residence, of the CUDA C++ Programming Guide's table of compute capabilities. What a kernel
takes by itself comes from the compiled kernels' own table, not from their headers.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

RESOURCES = Path(__file__).resolve().parents[1] / "packaging" / "kernel_resources.json"
WITHOUT_LEAVE = 48 * 1024  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK
RESERVED = 1024  # bytes of shared memory that each block costs in addition to its own
REGISTERS = 64 * 1024  # of a multiprocessor


class RefusedByDriverError(RuntimeError):
    """CUDA_ERROR_INVALID_VALUE, with the reason."""


@dataclass(frozen=True)
class Gpu:
    """Bytes are those of shared memory; `opt_in` is the most for a block, static and dynamic.
    `cluster` is the most blocks of one, of CUDA's portable size."""

    multiprocessors: int
    opt_in: int
    bytes_each: int
    threads_each: int
    blocks_each: int
    cluster: int = 1

    @property
    def machine(self) -> tuple[int, int, int]:
        """As plans take it."""
        return self.multiprocessors, self.opt_in, self.cluster


GPUS = {
    "sm_80": Gpu(108, 163 * 1024, 164 * 1024, 2048, 32),  # A100
    "sm_86": Gpu(84, 99 * 1024, 100 * 1024, 1536, 16),  # A40
    "sm_89": Gpu(58, 99 * 1024, 100 * 1024, 1536, 24),  # L4
    "sm_90a": Gpu(132, 227 * 1024, 228 * 1024, 2048, 32, 8),  # H100
    "sm_100": Gpu(148, 227 * 1024, 228 * 1024, 2048, 32, 8),  # B200
    "sm_120": Gpu(170, 99 * 1024, 100 * 1024, 1536, 24, 8),  # RTX 5090
}


@functools.cache
def recorded() -> dict[str, dict[str, str]]:
    """By kernel and architecture."""
    kernels: dict[str, dict[str, str]]
    kernels = json.loads(RESOURCES.read_text(encoding="utf-8"))["kernels"]
    return kernels


def resources(kernel: str, architecture: str) -> tuple[int, int]:
    """Registers of a thread and static bytes of shared memory, as compiled."""
    registers, static = map(int, re.findall(r"\d+", recorded()[kernel][architecture]))
    return registers, static


def static_bytes(kernel: str) -> int:
    """The most that the kernel takes on any architecture."""
    return max(resources(kernel, architecture)[1] for architecture in GPUS)


@dataclass
class Driver:
    """A device's driver: what kernels are allowed, and every attempt, in order.

    `history` has ("set", kernel, bytes) and ("launch", kernel, bytes), refused ones too.
    """

    opt_in: int
    allowed: dict[str, int] = field(default_factory=dict)
    history: list[tuple[str, str, int]] = field(default_factory=list)

    def set_attribute(self, kernel: str, value: int) -> None:
        """`cuFuncSetAttribute` of the largest dynamic size."""
        self.history.append(("set", kernel, value))
        if static_bytes(kernel) + value > self.opt_in:
            raise RefusedByDriverError(
                f"{kernel}: {static_bytes(kernel)} static bytes and {value} more, of {self.opt_in}"
            )
        self.allowed[kernel] = value

    def launch(self, kernel: str, dynamic: int) -> None:
        """`cuLaunchKernel`, as far as shared memory goes."""
        self.history.append(("launch", kernel, dynamic))
        allowed = self.allowed.get(kernel, WITHOUT_LEAVE - static_bytes(kernel))
        if dynamic > allowed:
            raise RefusedByDriverError(f"{kernel}: {dynamic} dynamic bytes, allowed {allowed}")


def resident_blocks(
    gpu: Gpu, architecture: str, kernel: str, threads: int, shared_bytes: int
) -> int:
    """How many blocks the whole GPU runs at once."""
    registers, static = resources(kernel, architecture)
    warps = -(-threads // 32)
    of_a_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS // of_a_warp // 4 * 4 // warps  # of four schedulers each
    bytes_of_a_block = -(-(static + shared_bytes + RESERVED) // 128) * 128
    by_shared_memory = gpu.bytes_each // bytes_of_a_block
    each = min(by_registers, by_shared_memory, gpu.threads_each // threads, gpu.blocks_each)
    return each * gpu.multiprocessors
