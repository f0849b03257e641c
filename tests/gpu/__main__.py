"""Builds, tests, sanitizes and measures on a GPU: `make gpu-check`, `gpu-sanitize`, `gpu-measure`.

    python3 -m tests.gpu check|sanitize|measure [PART ...] [--results DIR] [--dry-run]

Each command takes at most 540 seconds. It needs torch with CUDA, nvcc, ninja, pytest and numpy,
and no network; the operators are built in place for this GPU. After every part
DIR/gpu-COMMAND.tar.gz has all results and logs so far. Parts marked * run only when they are named.
`--dry-run` prints the commands.
Exit status: 0, 1 if a part failed, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from .parts import COMMANDS, OUT, ROOT, Part

ENVIRONMENT = {
    "RDK_GPU_TESTS_ON": "cuda",
    "RDK_CUDA": "on",
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "PYTHON": sys.executable,
}


def run(part: Part, environment: dict[str, str]) -> str:
    """passed, skipped or what went wrong; what it prints is in OUT/PART.log."""
    module = part.needs.replace("-", "_")
    program = shutil.which(part.needs, path=environment["PATH"])
    if part.needs and not (program or importlib.util.find_spec(module)):
        return f"skipped: {part.needs} is not installed"
    log = OUT / f"{part.name.rstrip('*')}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command.split(), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(part.limit)
        except subprocess.TimeoutExpired:
            return f"failed: not done within {part.limit} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    text = log.read_text(errors="replace")
    if part.says in text if part.says else status == 0:
        return "passed"
    return f"failed with status {status}: {text.strip().splitlines()[-1:]}"


def said(command: str) -> str:
    """The output of a short command; empty where it is not there."""
    if shutil.which(command.split()[0]) is None:
        return ""
    return subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Runs the parts of one command; see above."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--results", type=Path, default=ROOT / "build", metavar="DIR")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    parts = COMMANDS[options.command]
    named = {part.name.rstrip("*"): part for part in parts}
    if unknown := set(options.parts) - set(named):
        parser.error(f"no part is named {sorted(unknown)}; there are {', '.join(named)}")
    chosen = [named[name] for name in options.parts] or [
        p for p in parts if not p.name.endswith("*")
    ]
    print(f"{len(chosen)} parts, at most {sum(part.limit for part in chosen)} s together")
    if options.dry_run:
        print("\n".join(f"{part.name}: {part.command}" for part in chosen))
        return 0

    import torch

    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds none")
        return 2
    major, minor = torch.cuda.get_device_capability()
    archs = os.environ.get("RDK_ARCHS", "90a" if major == 9 else f"{major}{minor}")
    facts = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "driver": said("nvidia-smi --query-gpu=driver_version --format=csv,noheader"),
        "commit": os.environ.get("RDK_COMMIT") or said("git describe --always --dirty"),
    }
    print(*facts.values(), sep=", ")
    OUT.mkdir(parents=True, exist_ok=True)
    environment, results = os.environ | ENVIRONMENT | {"RDK_ARCHS": archs}, {}
    # ninja may be next to Python, and compute-sanitizer in the toolkit of nvcc.
    toolkit = Path(shutil.which("nvcc") or sys.executable).resolve().parents[1]
    folders = [Path(sys.executable).parent, toolkit / "bin", toolkit / "compute-sanitizer"]
    environment["PATH"] = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    # Each tensor is then an allocation of its own: nothing follows it in memory.
    environment |= {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if options.command == "sanitize" else {}
    for part in chosen:
        start = time.monotonic()
        results[part.name] = run(part, environment)
        print(
            f"{part.name:<18} {time.monotonic() - start:6.1f} s  {results[part.name]}", flush=True
        )
        (OUT / f"{options.command}.json").write_text(
            json.dumps(facts | {"parts": results}, indent=1)
        )
        with tarfile.open(options.results / f"gpu-{options.command}.tar.gz", "w:gz") as archive:
            archive.add(OUT, "gpu")
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
