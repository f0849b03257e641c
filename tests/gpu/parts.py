"""What `make gpu-check` runs, in order, each within a limit of seconds: ten minutes together, and
some more where CuPy is installed."""

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
# Modules that are parts of their own; the part "tests" is all others.
OWN_PARTS = {
    "agreement": ("CPU and CUDA draw the same tokens", 40, "test_agreement.py"),
    "invariance": ("the same bits in any batch, slot and strategy", 30, "test_invariance.py"),
    "graphs": ("captured, replayed, one launch each", 25, "test_graphs.py"),
    "compile": ("torch.compile without breaks, opcheck", 45, "test_compile.py"),
    "streams": ("streams, threads and devices beside each other", 20, "test_streams.py"),
    CUPY: ("kernels compiled and started through CuPy; by name", 150, "test_nvrtc.py"),
}
LOOK_LIMIT = 30  # seconds, of the part "environment"


def parts(machine: dict[str, Any], output: Path) -> list[Part]:
    """For this machine; what a part leaves but its log goes to the folder `output`."""
    python = sys.executable
    archs = os.environ.get("RDK_ARCHS") or architecture(machine["capability"])
    # ninja may lie beside a Python whose folder is not on the PATH.
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    build_folder = ROOT / "build" / "gpu-check" / "temp"

    def pytest(*arguments: str, at_once: int = 1) -> list[list[str]]:
        several = ["-n", str(at_once)] if machine["xdist"] and at_once > 1 else []
        return [[python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *several, *arguments]]

    on_gpu = {"RDK_GPU_TESTS_ON": "cuda", "PYTHONUNBUFFERED": "1"}
    ignored = [f"--ignore={FOLDER}/{module}" for _, _, module in OWN_PARTS.values()]
    sanitizer = machine["compute_sanitizer"]
    return [
        Part(
            "build",
            f"the operators, in place, for sm_{archs}",
            100,
            [
                [python, "setup.py", "build_ext", "--inplace", f"--build-temp={build_folder}"],
                [python, "-m", "tests.gpu.built"],
            ],
            {"RDK_CUDA": "on", "RDK_ARCHS": archs, "PATH": path},
        ),
        Part(
            "tests",
            "the CPU operators' tests, statistics and decoding on the device",
            120,
            pytest(FOLDER, *ignored, at_once=min(8, os.cpu_count() or 1)),
            on_gpu,
        ),
        *(
            Part(
                name,
                what,
                limit,
                pytest(f"{FOLDER}/{module}"),
                on_gpu,
                skipped="CuPy is not installed" if name == CUPY and not machine["cupy"] else "",
                by_name=name == CUPY,
            )
            for name, (what, limit, module) in OWN_PARTS.items()
        ),
        *(
            Part(
                tool,
                f"compute-sanitizer: {what}",
                40 if tool in PLANTED else 30,
                [[python, "-m", "tests.gpu.sanitize", tool, str(sanitizer)]],
                on_gpu,
                skipped="" if sanitizer else "compute-sanitizer is not installed",
            )
            for tool, what in TOOLS.items()
        ),
        Part(
            "benchmark",
            "a short one",
            50,
            [
                [
                    *(python, "profiling/bench.py", "--device", "cuda", "--preset", "short"),
                    *("--output", str(output / "benchmark.json")),
                ]
            ],
            {**on_gpu, "PYTHONPATH": str(ROOT)},
            needs=ROOT / "profiling" / "bench.py",
        ),
    ]
