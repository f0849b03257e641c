"""Builds, tests, sanitizes and measures on a GPU: `make gpu-check`, `gpu-sanitize`, `gpu-measure`.

    python3 -m tests.gpu check|sanitize|measure [PART ...] [--results DIR] [--dry-run]

Each command takes at most 540 seconds. It needs torch with CUDA, nvcc, ninja, pytest and numpy,
and no network. After every part DIR/gpu-COMMAND.tar.gz has all results and logs so far.
Part engine reads build/engines, which `make test-vllm` writes: steps of a real vLLM, which are made
again, and vLLM's kernels, between which ours run where there is no vLLM.
tests/gpu/test_nvrtc.py, which builds once more and needs CuPy, is run by its name.
Exit status: 0, 1 if a part failed, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT, BUILD = ROOT / "build" / "gpu", ROOT / "build" / "gpu-operators"
PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"
# What the tests compare with is computed on the CPU: ten minutes in one process.
SPREAD = f"-n {min(8, os.cpu_count() or 1)} --dist worksteal" if find_spec("xdist") else ""
GRAPHS = "tests/gpu/test_graphs.py tests/gpu/test_streams.py"
ENGINE = " ".join(
    f"tests/gpu/test_{each}.py" for each in ("serving", "recorded_steps", "engine_step")
)
SUITES = (
    "tests/gpu tests/operators tests/proof/statistics/test_one_position.py "
    "tests/decoding/test_every_proposer.py "
    + " ".join(
        f"--ignore={path}" for path in (*GRAPHS.split(), *ENGINE.split(), "tests/gpu/test_nvrtc.py")
    )
)
BENCH = f"{sys.executable} -m profiling.bench --device cuda --seconds 0.5 --output {OUT}"
# torch asks the driver for what it may not have; what our launches return is checked.
TOOLS = ("memcheck --report-api-errors=no", "racecheck", "initcheck", "synccheck")
# Nobody writes a ticket before it is read (csrc/cuda/ticket.cuh), so initcheck has them cleared.
SANITIZED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "RDK_CLEAR_TICKETS": "1"}
# torch's own kernels would take most of the time; ours are named _ZN3rdk...
SANITIZER = (
    "compute-sanitizer --tool={} --error-exitcode=86 --print-limit=10 --launch-timeout=0 "
    f"--kernel-name=kernel_substring=_ZN3rdk {sys.executable} -m tests.gpu.sweep"
)
# What a part with an error that is planted must find.
PLANTED = {"memcheck": "Invalid __", "initcheck": "Uninitialized __global__ memory read"}
# Seconds that a part takes at most, and its command.
COMMANDS: dict[str, dict[str, tuple[int, str]]] = {
    "check": {
        # Folders of its own: what another build left in the usual ones would pass as up to date.
        "build": (120, f"{sys.executable} setup.py build_ext --inplace "
                  f"--build-temp={BUILD}/temp --build-lib={BUILD}/lib"),
        "graphs": (60, f"{PYTEST} {GRAPHS}"),
        "engine": (60, f"{PYTEST} {ENGINE}"),
        "tests": (300, f"{PYTEST} {SPREAD} -m 'gpu and not night' {SUITES}"),
    },
    "sanitize": {
        f"planted-{tool}": (40, f"{SANITIZER.format(tool)} --planted {tool}") for tool in PLANTED
    } | {tool.split()[0]: (115, SANITIZER.format(tool)) for tool in TOOLS},
    "measure": {
        "serving": (110, f"{BENCH}/serving.json --preset serving --peers eager sparse early"),
        "variants": (50, f"{BENCH}/variants.json --preset variants --peers early"),
        "peers": (90, f"{sys.executable} -m profiling.peers --device cuda --seconds 2 "
                  f"--output {OUT}/peers.json --peers eager eager-gather scatter-logits sparse "
                  "flashinfer vllm vllm-v2 sglang-chain sglang-target-only cupy"),
        "end-to-end": (60, f"{sys.executable} -m studies.end_to_end --device cuda --size serving "
                       f"--output {OUT}/end_to_end.json"),
        "engine": (40, f"{sys.executable} -m tests.gpu.engine --device cuda "
                   f"--output {OUT}/engine.json"),
        "kernels": (80, f"profiling/nsight/ncu.sh {OUT}/ncu"),
        "timeline": (50, f"{sys.executable} -m profiling.nsight.torch_profile --device cuda "
                     f"--batch 8 --output {OUT}/timeline"),
        "nsys": (60, f"profiling/nsight/nsys.sh {OUT}/nsys --batch 8"),
    },
}  # fmt: skip


def run(name: str, limit: int, command: str, environment: dict[str, str]) -> str:
    """passed, or what went wrong; what it prints is in OUT/NAME.log."""
    log = OUT / f"{name}.log"
    with log.open("wb") as output:
        status = subprocess.call(  # `timeout` ends what the part started, too
            ["timeout", "--kill-after=5", str(limit), *shlex.split(command)],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    said = log.read_text(errors="replace")
    found = PLANTED[command.split()[-1]] in said if "--planted" in command else status == 0
    return "passed" if found else f"failed with status {status}: {said.strip().splitlines()[-1:]}"


def main() -> int:
    """Runs the parts of one command; see above."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--results", type=Path, default=ROOT / "build", metavar="DIR")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_args()
    parts = COMMANDS[options.command]
    chosen = options.parts or list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"no part is named {sorted(unknown)}; there are {', '.join(parts)}")
    if options.dry_run:
        print("\n".join(f"{name}: {parts[name][1]}" for name in chosen))
        return 0

    import torch

    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds none")
        return 2
    major, minor = torch.cuda.get_device_capability()
    environment = {"RDK_ARCHS": "90a" if major == 9 else f"{major}{minor}"} | os.environ
    environment |= {"RDK_GPU_TESTS_ON": "cuda", "RDK_CUDA": "on", "PYTHONPATH": str(ROOT)}
    # Each tensor is then an allocation of its own: nothing follows it in memory.
    environment |= SANITIZED if options.command == "sanitize" else {}
    OUT.mkdir(parents=True, exist_ok=True)
    results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in chosen:
        results[name] = run(name, *parts[name], environment)
        print(f"{name:<18} {results[name]}", flush=True)
        (OUT / f"{options.command}.json").write_text(json.dumps(results, indent=1))
        with tarfile.open(options.results / f"gpu-{options.command}.tar.gz", "w:gz") as archive:
            archive.add(OUT, "gpu")
    return int(any(results[name] != "passed" for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
