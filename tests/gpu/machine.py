"""What a result depends on, apart from the tests; `python3 -m tests.gpu.machine` prints it."""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc/**/*.*", "rdk_cuda/*.py*", "tests/**/*.*", "profiling/**/*.py", "*.py", "*.toml")
DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
# Two results are of the same thing where these are the same.
SAME = ("commit", "sources", "gpu", "driver", "torch")


def facts() -> dict[str, Any]:
    """By name; `no_gpu` says in words why there is none, and is absent where there is one."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": os.environ.get("RDK_COMMIT") or output("git", "rev-parse", "HEAD"),
        "dirty": bool(output("git", "status", "--porcelain", "--untracked-files=no")),
        "sources": digest_of_sources(),
        "python": platform.python_version(),
        "nvcc": found(r"release (\d+\.\d+)", output("nvcc", "--version")),
        "ninja": output("ninja", "--version"),
        "compute_sanitizer": compute_sanitizer(),
        "xdist": importlib.util.find_spec("xdist") is not None,
        "cupy": importlib.util.find_spec("cupy") is not None,
        "driver": last_line(output(*DRIVER)),  # the same for every GPU
        **facts_of_torch(),
    }


def facts_of_torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"no_gpu": f"torch cannot be imported ({error})"}
    versions = {"torch": torch.__version__, "torch_cuda": torch.version.cuda}
    if torch.version.cuda is None:
        return {**versions, "no_gpu": f"torch {torch.__version__} has no CUDA"}
    try:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
    except (RuntimeError, AssertionError) as error:
        return {**versions, "no_gpu": f"torch finds none ({str(error).splitlines()[0]})"}
    return {
        **versions,
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def architecture(capability: str) -> str:
    """For RDK_ARCHS: 9.0 has instructions of its own, which its code is compiled for."""
    digits = capability.replace(".", "")
    return f"{digits}a" if digits == "90" else digits


def output(*command: str) -> str | None:
    """What a short command prints, or None where it is not there or fails."""
    try:
        result = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=15, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def found(pattern: str, text: str | None) -> str | None:
    match = re.search(pattern, text or "")
    return match[1] if match else last_line(text)


def last_line(text: str | None) -> str | None:
    return text.split("\n")[-1] if text else None


def compute_sanitizer() -> str | None:
    """On the PATH, or in the toolkit that nvcc is of."""
    nvcc = shutil.which("nvcc")
    folders = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]
    if nvcc is not None:
        toolkit = Path(nvcc).resolve().parents[1]
        folders += [str(toolkit / "bin"), str(toolkit / "compute-sanitizer")]
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *folders]))


def digest_of_sources(root: Path = ROOT, patterns: Sequence[str] = SOURCES) -> str:
    """Also where there is no git, and where the commit is not all that is there."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        if path.is_file() and path.suffix not in (".pyc", ".so"):
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps(facts()))
