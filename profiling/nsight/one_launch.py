"""`python -m profiling.nsight.one_launch`: launches of every operator, for Nsight Compute.

The CUDA profiler is on during these launches alone, so that `ncu --profile-from-start=off` looks at
nothing else. Each is one kernel, in an NVTX range that has the name of its case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from ..bench.cases import OVERLAP, PAIR, PRESETS, preset_cases
from ..bench.workloads import build
from ..commands import Parser, refuse_device, run_command
from .decoding_run import captured

WARM_UP = 3


def run(options: argparse.Namespace) -> None:
    """Launch each case of the preset that is one kernel, after a warm-up."""
    refuse_device(options)
    device = torch.device(options.device)
    every = preset_cases(options.preset, device.type)
    cases = [case for case in every if case.operator not in (PAIR, OVERLAP)]
    for number, case in enumerate(cases, 1):
        print(f"[{number}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        workload = build(case, device)
        for _ in range(WARM_UP):
            workload.ours(0)
        with captured(device.type, case.name):
            workload.ours(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.one_launch", description=__doc__)
    add = command.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: a rehearsal")
    add("--preset", choices=PRESETS, default="short")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
