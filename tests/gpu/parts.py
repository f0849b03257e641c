"""What the three commands of tests.gpu run, in order, each part within a limit of seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu"
PYTHON = sys.executable
PYTEST = f"{PYTHON} -m pytest -q -p no:cacheprovider"
SUITES = (
    "tests/operators tests/statistics/test_one_position.py tests/statistics/test_decoding_loops.py "
    "tests/decoding/test_losslessness.py"
)
SWEEP = f"{PYTHON} -m tests.gpu.sweep"
# torch's own kernels would take most of the time; ours are named _ZN3rdk...
SANITIZER = (
    "compute-sanitizer --tool={} --error-exitcode=86 --print-limit=10 --launch-timeout=0 "
    "--kernel-name=kernel_substring=_ZN3rdk --report-api-errors=no " + SWEEP
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


COMMANDS = {
    "check": [
        Part("build", 120, f"{PYTHON} setup.py build_ext --inplace"),
        Part("tests", 150, f"{PYTEST} -m gpu tests/gpu {SUITES} -n 8", needs="xdist"),
        Part("agreement", 60, f"{PYTEST} tests/gpu/test_agreement.py tests/gpu/test_invariance.py"),
        Part("graphs", 60, f"{PYTEST} tests/gpu/test_graphs.py tests/gpu/test_streams.py"),
        Part("compile", 120, f"{PYTEST} tests/gpu/test_compile.py tests/operators/test_pytorch.py"),
        Part("cupy*", 150, f"{PYTEST} tests/gpu/test_nvrtc.py", needs="cupy"),
        Part("properties*", 300, f"{PYTEST} tests/properties/test_properties.py"),
    ],
    "sanitize": [
        # The controls: each must find an error that is planted without breaking a kernel.
        Part("planted-memcheck", 40, SANITIZER.format("memcheck") + " --planted memcheck",
             "compute-sanitizer", "Invalid __"),
        Part("planted-initcheck", 40, SANITIZER.format("initcheck") + " --planted initcheck",
             "compute-sanitizer", "Uninitialized __global__ memory read"),
        *(Part(tool, 115, SANITIZER.format(tool), "compute-sanitizer")
          for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
    ],
    "measure": [
        Part("serving", 110, f"{BENCH} serving --seconds 0.5 --output {OUT}/serving.json "
             "--peers eager sparse split in-order queue early"),
        Part("variants", 50, f"{BENCH} variants --seconds 0.5 --output {OUT}/variants.json "
             "--peers split in-order queue"),
        Part("peers", 90, f"{PEERS}peers.json --peers eager eager-gather scatter-logits sparse "
             "flashinfer vllm vllm-v2 sglang-chain sglang-target-only cupy"),
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
