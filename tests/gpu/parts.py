"""What the three commands of tests.gpu run, in order, each part within a limit of seconds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OUT, BUILD = ROOT / "build" / "gpu", ROOT / "build" / "gpu-operators"
PYTHON = sys.executable
PYTEST = f"{PYTHON} -m pytest -q -p no:cacheprovider"
SEVERAL = "-n 8" if importlib.util.find_spec("xdist") else ""
# What is a part of its own, besides the suites below.
OWN = {
    "agreement": "tests/gpu/test_agreement.py tests/gpu/test_invariance.py",
    "graphs": "tests/gpu/test_graphs.py tests/gpu/test_streams.py",
    "compile": "tests/gpu/test_compile.py tests/operators/test_pytorch.py",
    "cupy": "tests/gpu/test_nvrtc.py",
}
OTHERS = " ".join(f"--ignore={path}" for paths in OWN.values() for path in paths.split())
SUITES = (
    "tests/operators tests/statistics/test_one_position.py tests/statistics/test_decoding_loops.py "
    "tests/decoding/test_losslessness.py"
)
SWEEP = f"{PYTHON} -m tests.gpu.sweep"
# torch asks the driver for what it may not have; what our launches return is checked.
TOOLS = {"memcheck": "--report-api-errors=no", "racecheck": "", "initcheck": "", "synccheck": ""}
# torch's own kernels would take most of the time; ours are named _ZN3rdk...
SANITIZER = (
    "compute-sanitizer --tool={} --error-exitcode=86 --print-limit=10 --launch-timeout=0 "
    "--kernel-name=kernel_substring=_ZN3rdk {} " + SWEEP
)
BENCH = f"{PYTHON} -m profiling.bench --device cuda --preset"
PEERS = f"{PYTHON} -m profiling.peers --device cuda --seconds 2 --output {OUT}/"


class Part(NamedTuple):
    """`needs`: a module or program; `says`: what its output must have, whatever its status."""

    name: str
    limit: int  # seconds
    command: str
    needs: str = ""
    says: str = ""


def sanitizer(tool: str) -> str:
    """The sweep under one of compute-sanitizer's tools."""
    return SANITIZER.format(tool, TOOLS[tool])


COMMANDS = {
    "check": [
        # Folders of its own: what another build left in the usual ones would pass as up to date.
        Part("build", 120, f"{PYTHON} setup.py build_ext --inplace "
             f"--build-temp={BUILD}/temp --build-lib={BUILD}/lib"),
        Part("tests", 150, f"{PYTEST} {SEVERAL} -m gpu tests/gpu {SUITES} {OTHERS}"),
        Part("agreement", 60, f"{PYTEST} {OWN['agreement']}"),
        Part("graphs", 60, f"{PYTEST} {OWN['graphs']}"),
        Part("compile", 120, f"{PYTEST} {OWN['compile']}"),
        Part("cupy*", 150, f"{PYTEST} {OWN['cupy']}", needs="cupy"),
    ],
    "sanitize": [
        # The controls: each must find an error that is planted without breaking a kernel.
        Part("planted-memcheck", 40, sanitizer("memcheck") + " --planted memcheck",
             "compute-sanitizer", "Invalid __"),
        Part("planted-initcheck", 40, sanitizer("initcheck") + " --planted initcheck",
             "compute-sanitizer", "Uninitialized __global__ memory read"),
        *(Part(tool, 115, sanitizer(tool), "compute-sanitizer") for tool in TOOLS),
    ],
    "measure": [
        Part("serving", 110, f"{BENCH} serving --seconds 0.5 --output {OUT}/serving.json "
             "--peers eager sparse split in-order queue early"),
        Part("variants", 50, f"{BENCH} variants --seconds 0.5 --output {OUT}/variants.json "
             "--peers split in-order queue"),
        Part("peers", 90, f"{PEERS}peers.json --peers eager eager-gather scatter-logits sparse "
             "flashinfer vllm vllm-v2 sglang-chain sglang-target-only cupy"),
        Part("end-to-end", 60, f"{PYTHON} -m studies.end_to_end --device cuda --size serving "
             f"--output {OUT}/end_to_end.json", "transformers"),
        Part("kernels", 100, f"profiling/nsight/ncu.sh {OUT}/ncu", "ncu"),
        Part("timeline", 60, f"{PYTHON} -m profiling.nsight.torch_profile --device cuda --batch 8 "
             f"--output {OUT}/timeline", "transformers"),
        Part("nsys", 60, f"profiling/nsight/nsys.sh {OUT}/nsys --batch 8", "nsys"),
        Part("growth*", 300, f"{BENCH} growth --seconds 0.5 --output {OUT}/growth.json"),
        Part("compiled*", 400, f"{BENCH} serving --seconds 0.5 --output {OUT}/compiled.json "
             "--peers compiled"),
        Part("slow-peers*", 400, f"{PEERS}slow-peers.json "
             "--peers compiled compiled-gather transformers"),
    ],
}  # fmt: skip
