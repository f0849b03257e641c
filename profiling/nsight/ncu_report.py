"""`python -m profiling.nsight.ncu_report FILE.csv`: Nsight Compute on each kernel.

The file is what `ncu --page raw --csv` writes: lines of its own that begin with ==, a line of
titles, a line of their units, and a line for each launch (Nsight Compute CLI documentation, "Page
raw"). ncu.sh makes one.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rdk_cuda.cli.errors import InputError
from rdk_cuda.files import write_json

from ..commands import Parser, run_command
from ..tables import table

__all__ = ["METRICS", "Launch", "bound", "main", "read_launches"]

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "barrier": "barriers",
    "membar": "memory fences",
    "lg_throttle": "the queue of global memory",
    "mio_throttle": "the queue of shared memory",
    "math_pipe_throttle": "arithmetic units",
    "wait": "fixed latencies of arithmetic",
    "not_selected": "other warps that issue",
    "no_instruction": "instruction fetch",
    "branch_resolve": "branches",
    "drain": "writes at the end",
    "sleeping": "sleeping",
    "tex_throttle": "the texture unit",
}
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_mb": "dram__bytes.sum",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
# To microseconds and megabytes; Nsight Compute chooses units, and names changed between versions.
UNITS = {
    "nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3,
    "second": 1e6, "s": 1e6,
    "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3,
}  # fmt: skip
BUSY = 60.0  # percent of a unit's peak above which Nsight Compute calls a kernel bound by it
SHORT = 10.0  # microseconds in which a launch's own latency still shows


@dataclass(frozen=True)
class Launch:
    """A kernel's launch; None is what was not measured. The figures are those of `METRICS`.

    Attributes:
        stalls: warps that wait for each issued instruction, by reason, most first.
    """

    kernel: str
    blocks: str
    threads: str
    figures: Mapping[str, float | None]
    stalls: Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.ncu_report", description=__doc__)
    add = command.add_argument
    add("file", nargs="?", type=Path, help="what ncu --page raw --csv wrote")
    add("--cases", type=Path, metavar="FILE", help="of one_launch.py: the launches' shapes")
    add("--json", type=Path, metavar="FILE", help="write the rows too")
    add("--metrics", action="store_true", help="print what ncu is to measure")
    return run_command(command, run, arguments)


def run(options: argparse.Namespace) -> None:
    """Read, name, print."""
    if options.metrics:
        print(",".join([*METRICS.values(), *map(STALL.format, STALLS)]))
        return
    if options.file is None:
        raise InputError("needs a FILE, or --metrics")
    launches = read_launches(options.file)
    about, cases = read_cases(options.cases, launches)
    rows = [
        {"case": case, **asdict(launch), "bound": bound(launch)}
        for case, launch in zip(cases, launches, strict=True)
    ]
    if options.json:
        content = {"format": "rdk_cuda.kernels", "format_version": 1, **about, "rows": rows}
        write_json(content, options.json)
    print(report(rows))


def read_launches(path: Path) -> list[Launch]:
    """All launches of a file.

    Raises:
        InputError: no such file, no table in it, or no launches.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; needs what ncu --csv writes") from None
    said = [line for line in lines if line.startswith("==ERROR==")]
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    if not rows or "Kernel Name" not in rows[0]:
        reason = said[0] if said else "it has no line of titles with Kernel Name"
        raise InputError(f"{path}: no table of ncu --page raw --csv: {reason}")
    units, *found = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]] or [{}]
    if not found:
        raise InputError(f"{path}: no kernel was profiled; was anything launched?")
    return [launch(row, units) for row in found]


def launch(row: Mapping[str, str], units: Mapping[str, str]) -> Launch:
    """One line of the table."""
    stalls = {reason: figure(row, units, STALL.format(reason)) for reason in STALLS}
    known = {reason: value for reason, value in stalls.items() if value is not None}
    return Launch(
        kernel=row["Kernel Name"],
        blocks=row.get("Grid Size", ""),
        threads=row.get("Block Size", ""),
        figures={name: figure(row, units, metric) for name, metric in METRICS.items()},
        stalls=dict(sorted(known.items(), key=lambda item: -item[1])),
    )


def figure(row: Mapping[str, str], units: Mapping[str, str], metric: str) -> float | None:
    """In our units; None where it was not measured."""
    text = row.get(metric, "").replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value * UNITS.get(units.get(metric, ""), 1.0)


def read_cases(path: Path | None, launches: Sequence[Launch]) -> tuple[dict[str, Any], list[str]]:
    """What is known of the run, and the shape of each launch; kernels are called by their operator.

    Raises:
        InputError: other launches than those of the file.
    """
    if path is None:
        return {}, [launch.kernel for launch in launches]
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        cases = [(row["case"], row["operator"]) for row in about.pop("cases")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is no file of one_launch.py ({error})") from None
    if len(cases) != len(launches):
        raise InputError(f"{path}: has {len(cases)} cases, but {len(launches)} were profiled")
    for (case, operator), launched in zip(cases, launches, strict=True):
        if operator not in launched.kernel:
            raise InputError(f"{path}: {case} was launched where ncu saw {launched.kernel}")
    return about, [case for case, _ in cases]


def bound(launch: Launch) -> str:
    """A sentence on what a kernel's time is made of."""
    figures = launch.figures
    memory, cache, issue = (
        figures[name] or 0.0 for name in ("dram_percent", "l2_percent", "issue_percent")
    )
    waiting = next(iter(launch.stalls), None)
    stalled = f"; warps wait for {STALLS[waiting]} most" if waiting else ""
    highest = max(memory, cache, issue)
    if highest >= BUSY:
        if highest == memory:
            return f"Memory: DRAM is busy {memory:.0f} % of the time{stalled}."
        if highest == cache:
            return f"L2 cache: busy {cache:.0f} % of the time{stalled}."
        return f"Instructions: {issue:.0f} % of the issue slots are used{stalled}."
    duration = figures["duration_us"]
    if duration is not None and duration < SHORT:
        return f"Latency: {duration:.1f} us, too short to keep anything busy{stalled}."
    occupancy = figures["occupancy_percent"] or 0.0
    return (
        f"Latency: nothing is busier than {highest:.0f} %, with {occupancy:.0f} % of the warps "
        f"that fit{stalled}."
    )


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, in Markdown."""
    titles = (
        *("launch", "us", "DRAM %", "DRAM MB", "L2 %", "issue %", "occupancy %", "registers"),
        "what bounds it",
    )
    shown = ("duration_us", *(name for name in METRICS if name != "duration_us"))
    lines = []
    for row in rows:
        cells = [row["figures"][name] for name in shown]
        texts = ["" if cell is None else f"{cell:.4g}" for cell in cells]
        lines.append((row["case"], *texts, row["bound"]))
    return table(titles, lines)


if __name__ == "__main__":
    raise SystemExit(main())
