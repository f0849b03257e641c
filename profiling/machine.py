"""Where figures were measured: device, versions, commit."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import rdk_cuda

ROOT = Path(__file__).resolve().parents[1]


def describe(device: torch.device) -> dict[str, Any]:
    """The columns of a row that are the same in the whole run."""
    on_gpu = device.type == "cuda"
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name() if on_gpu else processor_name(),
        "threads": torch.get_num_threads(),
        "multiprocessors": multiprocessors(device),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "version": rdk_cuda.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "driver": driver_version() if on_gpu else None,
        "commit": git("rev-parse", "HEAD") or os.environ.get("RDK_COMMIT"),
        "dirty": dirty(),
    }


def multiprocessors(device: torch.device) -> int | None:
    """The number of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def processor_name() -> str:
    """The name that Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def driver_version() -> str | None:
    """The version of the NVIDIA driver; None without nvidia-smi."""
    return answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")


def git(*arguments: str) -> str | None:
    """What git says of this repository; None if it is none."""
    return answer("git", "-C", str(ROOT), *arguments)


def dirty() -> bool | None:
    """Whether tracked files differ from the commit."""
    status = git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else status != ""


def answer(*command: str) -> str | None:
    """What a program prints; None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
