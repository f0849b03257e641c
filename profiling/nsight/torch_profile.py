"""`python -m profiling.nsight.torch_profile`: a decoder's timeline without Nsight.

Writes a trace for chrome://tracing or Perfetto, and prints the tables of nsys_report.py. On a GPU
the work is its kernels; on a CPU it is operators, without the time of operators that they call.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rdk_cuda.files import write_json, write_whole

from ..commands import Parser, command_line, run_command, write_text
from ..machine import describe, now
from . import decoding_run
from .timeline import Kernel, Span, Timeline, data, report

__all__ = ["main", "timeline_of"]

PREFIX = "rdk: "  # of `rdk_cuda.functional.ranges`
TRACE, TABLES, DATA = "trace.json", "timeline.md", "timeline.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


def parser() -> Parser:
    """The command line."""
    command = Parser(prog="python -m profiling.nsight.torch_profile", description=__doc__)
    decoding_run.add_arguments(command)
    command.add_argument("--output", type=Path, metavar="DIR", help="trace, tables and data")
    return command


def run(options: argparse.Namespace) -> None:
    """Profile one decoding run."""
    prepared = decoding_run.prepare(options)
    typed = command_line(parser(), options)
    about = {"run": now(), "command": typed, **describe(torch.device(options.device))}
    activities = [ProfilerActivity.CPU]
    if options.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        prepared.decode()
    timeline = timeline_of(profiler.events(), "GPU" if options.device == "cuda" else "CPU")
    text = report(timeline)
    print(text)
    if options.output is None:
        return
    options.output.mkdir(parents=True, exist_ok=True)
    write_json(data(timeline, about), options.output / DATA)
    heading = f"`{typed}` on {about['device_name']}, torch {about['torch']}, {about['run']}"
    write_text(f"{heading}\n\n{text}\n", options.output / TABLES)
    write_whole(options.output / TRACE, lambda beside: profiler.export_chrome_trace(str(beside)))
    print(f"\nwritten to {options.output}: {TABLES}, {DATA}, {TRACE} (for chrome://tracing)")


def timeline_of(events: Iterable[Any], worker: str) -> Timeline:
    """From what `torch.profiler.profile.events()` returns, whose times are in microseconds."""
    spans, kernels = [], []
    for event in events:
        start, end = (round(1000 * at) for at in (event.time_range.start, event.time_range.end))
        on_cpu = event.device_type.name == "CPU"
        if on_cpu and event.name.startswith(PREFIX):
            name = event.name.removeprefix(PREFIX)
            spans.append(Span(name, start, end, event.thread))
        elif worker == "GPU":
            kernels += [
                # A kernel's own event has no time range of its launch; the operator's has.
                Kernel(kernel.name, 0, round(1000 * kernel.duration), start, event.thread)
                for kernel in event.kernels
            ]
        elif on_cpu:
            kernels.append(own_work(event, start))
    return Timeline(spans, kernels, worker)


def own_work(event: Any, start: int) -> Kernel:
    """An operator without those that it calls."""
    own = round(1000 * event.self_cpu_time_total)
    return Kernel(event.name, start, start + own, start, event.thread)


if __name__ == "__main__":
    raise SystemExit(main())
