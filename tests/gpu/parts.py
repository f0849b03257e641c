"""What `make gpu-check` and `make gpu-sanitize` run, in order, each within a limit of seconds.

A rented machine may cut a command at ten minutes: the limits of one are at most `TOGETHER`, and
what takes more is run by its name alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .machine import ROOT, architecture
from .running import Part

TOOLS = {
    "memcheck": "reads and writes outside of memory",
    "racecheck": "threads of a block that race for shared memory",
    "initcheck": "reads of global memory that nobody wrote",
    "synccheck": "barriers that not all threads reach",
}
# What a tool says of an error that is planted without breaking a kernel, which it is seen to find.
PLANTED = {"memcheck": "Invalid __", "initcheck": "Uninitialized __global__ memory read"}
FOLDER = "tests/gpu"
CUPY = "cupy"
TOGETHER = 540  # seconds, of all parts of a command
# Modules that are parts of their own; the part "tests" is all others.
OWN_PARTS = {
    "agreement": ("CPU and CUDA draw the same tokens", 30, "tests/gpu/test_agreement.py"),
    "invariance": (
        "the same bits in any batch, slot and strategy",
        25,
        "tests/gpu/test_invariance.py",
    ),
    "graphs": ("captured, replayed, one launch each", 25, "tests/gpu/test_graphs.py"),
    "streams": ("streams, threads and devices next to each other", 20, "tests/gpu/test_streams.py"),
    CUPY: ("kernels compiled and started through CuPy; by name", 150, "tests/gpu/test_nvrtc.py"),
    "properties": ("any legal batch; by name", 300, "tests/properties/test_properties.py"),
    # Last: a first compilation is the slowest to start, and nothing else needs it.
    "compile": (
        "torch.compile without breaks, opcheck",
        120,
        "tests/gpu/test_compile.py tests/operators/test_pytorch.py",
    ),
}
# The suites that run on every backend, on the device here; see tests/devices.py.
ON_EVERY_DEVICE = (
    "tests/operators",
    "tests/statistics/test_one_position.py",
    "tests/statistics/test_decoding_loops.py",
    "tests/decoding/test_losslessness.py",
    "tests/properties/test_properties.py",
)


def on_device(machine: dict[str, Any]) -> dict[str, str]:
    """The environment of tests: on the GPU, or in a dry run on what takes its place."""
    place = "cpu" if machine.get("dry_run") else "cuda"
    return {"RDK_GPU_TESTS_ON": place, "PYTHONUNBUFFERED": "1"}


def build(machine: dict[str, Any]) -> Part:
    """In place for this GPU; in a dry run elsewhere, so that what is built here stays."""
    python = sys.executable
    archs = os.environ.get("RDK_ARCHS") or architecture(machine["capability"])
    # ninja may be next to a Python whose folder is not on the PATH.
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    dry_run = machine.get("dry_run", False)
    folder = ROOT / "build" / ("dry-run-operators" if dry_run else "gpu-operators")
    # Folders of their own: what another build left in the usual one would pass as up to date.
    folders = [f"--build-{each}={folder / each}" for each in ("temp", "lib")]
    setup = [python, "setup.py", "build_ext", *folders]
    return Part(
        "build",
        "the operators for the CPU, elsewhere" if dry_run else f"in place, for sm_{archs}",
        90,
        [setup] if dry_run else [[*setup, "--inplace"], [python, "-m", "tests.gpu.built"]],
        {"RDK_CUDA": "off" if dry_run else "on", "RDK_ARCHS": archs, "PATH": path},
    )


def parts(machine: dict[str, Any], output: Path) -> list[Part]:
    """What `make gpu-check` runs on this machine."""
    python = sys.executable

    def pytest(*arguments: str, at_once: int = 1) -> list[list[str]]:
        several = ["-n", str(at_once)] if machine["xdist"] and at_once > 1 else []
        return [[python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *several, *arguments]]

    on_gpu = on_device(machine)
    ignored = [f"--ignore={path}" for _, _, paths in OWN_PARTS.values() for path in paths.split()]
    return [
        build(machine),
        Part(
            "tests",
            "the CPU operators' tests, statistics and decoding on the device",
            110,
            pytest(FOLDER, *ON_EVERY_DEVICE, *ignored, at_once=min(8, os.cpu_count() or 1)),
            on_gpu,
        ),
        *(
            Part(
                name,
                what,
                limit,
                pytest(*paths.split()),
                on_gpu,
                skipped="CuPy is not installed" if name == CUPY and not machine["cupy"] else "",
                by_name=what.endswith("by name"),
            )
            for name, (what, limit, paths) in OWN_PARTS.items()
        ),
    ]


def sanitizers(machine: dict[str, Any], output: Path) -> list[Part]:
    """What `make gpu-sanitize` runs on this machine, with the operators built already."""
    sanitizer, dry_run = machine["compute_sanitizer"], machine.get("dry_run")
    return [
        Part(
            tool,
            f"compute-sanitizer: {what}",
            120,
            [
                [sys.executable, "-m", "tests.gpu.sweep", "--device", "cpu"]
                if dry_run
                else [sys.executable, "-m", "tests.gpu.sanitize", tool, str(sanitizer)]
            ],
            on_device(machine),
            skipped="" if sanitizer or dry_run else "compute-sanitizer is not installed",
        )
        for tool, what in TOOLS.items()
    ]
