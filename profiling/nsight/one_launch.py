"""`python -m profiling.nsight.one_launch`: launches of every operator, for Nsight Compute.

The CUDA profiler is on during these launches alone, so that `ncu --profile-from-start=off` looks at
nothing else. Each is one kernel; their order is that of `--cases`, which ncu_report.py reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rdk_cuda.files import write_json

from ..bench.cases import PAIR, PRESETS, Case, preset_cases
from ..bench.workloads import build
from ..commands import Parser, refuse_device, run_command
from ..machine import describe, now
from .decoding_run import captured

__all__ = ["launched_cases", "main"]

WARM_UP = 3


def launched_cases(preset: str, device: str) -> list[Case]:
    """Those of a preset that are one kernel."""
    return [case for case in preset_cases(preset, device) if case.operator != PAIR]


def run(options: argparse.Namespace) -> None:
    """Launch each case, warm."""
    refuse_device(options)
    device = torch.device(options.device)
    cases = launched_cases(options.preset, options.device)
    for number, case in enumerate(cases, 1):
        print(f"[{number}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        workload = build(case, device)
        for _ in range(WARM_UP):
            workload.ours(0)
        with captured(options.device):
            workload.ours(0)
    if options.cases:
        rows = [{"case": case.name, "operator": case.operator} for case in cases]
        write_json({"run": now(), **describe(device), "cases": rows}, options.cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.one_launch", description=__doc__)
    add = command.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: a rehearsal")
    add("--preset", choices=PRESETS, default="short")
    add("--cases", type=Path, metavar="FILE", help="write what was launched, in order")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
