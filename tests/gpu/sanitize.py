"""Runs the sweep under one tool of compute-sanitizer, and first an error that it must find.

python3 -m tests.gpu.sanitize memcheck /usr/local/cuda/bin/compute-sanitizer
"""

from __future__ import annotations

import os
import subprocess
import sys

from .machine import ROOT
from .parts import PLANTED, TOOLS

OURS = "_ZN3rdk"  # what the mangled names of our kernels, and no others, begin with
FOUND = 86  # the exit status that says that there are errors


def command(tool: str, sanitizer: str, *sweep: str) -> list[str]:
    return [
        sanitizer,
        f"--tool={tool}",
        f"--error-exitcode={FOUND}",
        "--print-limit=10",
        f"--kernel-name=kernel_substring={OURS}",  # torch's own would take most of the time
        "--launch-timeout=0",  # the part has a limit of its own
        # torch asks the driver for what it may not have; what our launches return is checked.
        *(["--report-api-errors=no"] if tool == "memcheck" else []),
        *(sys.executable, "-m", "tests.gpu.sweep", *sweep),
    ]


def main(tool: str, sanitizer: str) -> int:
    # Each tensor is an allocation of its own: nothing follows it in memory, or was written before.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if tool in PLANTED:
        planted = subprocess.run(
            command(tool, sanitizer, "--planted", tool),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(planted.stdout, flush=True)
        # The status may be that of the process, whose context is broken by then.
        if PLANTED[tool] not in planted.stdout:
            print(f"{tool} does not find an error that is there (status {planted.returncode})")
            return 1
    print(f"--- {tool} over the sweep", flush=True)
    return subprocess.run(command(tool, sanitizer), cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in TOOLS:
        sys.exit(f"usage: python3 -m tests.gpu.sanitize {'|'.join(TOOLS)} COMPUTE_SANITIZER")
    sys.exit(main(*sys.argv[1:]))
