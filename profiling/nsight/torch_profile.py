"""`python -m profiling.nsight.torch_profile`: where a decoder's time goes, without Nsight.

Prints torch.profiler's table of the decoder's ranges ("rdk: step" and its parts) and of the
operators or kernels inside them, and writes a trace for chrome://tracing or Perfetto.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from rdk_cuda.files import write_whole

from ..commands import Parser, run_command, write_text
from . import decoding_run

TRACE, TABLE = "trace.json", "timeline.txt"
PRINTED = 40  # rows; the file has all


def run(options: argparse.Namespace) -> None:
    """Profile one decoding run."""
    prepared = decoding_run.prepare(options)
    activities = [ProfilerActivity.CPU]
    if options.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        prepared.decode()
    # By the time with all that was called inside, so that the ranges come first.
    averages, order = profiler.key_averages(), "cpu_time_total"
    print(averages.table(sort_by=order, row_limit=PRINTED))
    if options.output is None:
        return
    options.output.mkdir(parents=True, exist_ok=True)
    write_text(averages.table(sort_by=order, row_limit=-1), options.output / TABLE)
    write_whole(options.output / TRACE, lambda beside: profiler.export_chrome_trace(str(beside)))
    print(f"written to {options.output}: {TABLE}, {TRACE} (for chrome://tracing)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.torch_profile", description=__doc__)
    decoding_run.add_arguments(command)
    command.add_argument("--output", type=Path, metavar="DIR", help="for the table and the trace")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
