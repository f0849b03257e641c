"""Builds, tests, sanitizes and measures the operators on a GPU, in ten minutes: `make gpu-check`.

Where CuPy is installed, it takes up to three minutes more, for a build without nvcc.

python3 -m tests.gpu                     everything
python3 -m tests.gpu --list              the parts and their limits
python3 -m tests.gpu --part build --part graphs
python3 -m tests.gpu --resume            what has not passed yet for these sources and this GPU
python3 -m tests.gpu --measure           figures, in ten minutes more: `make gpu-measure`

It needs torch with CUDA, nvcc, ninja, pytest and numpy, and no network. The operators are built in
place, for this GPU only (RDK_ARCHS for others). RDK_COMMIT names the commit where there is no git.
Exit status: 0, 1 if a part failed, 2 if there is no GPU, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import report
from .machine import ROOT
from .measurements import measurements
from .parts import LOOK_LIMIT, parts
from .running import Outcome, Part, Stopped, run, stoppable, tail

ENVIRONMENT = "environment"
OUTPUT = ROOT / "build" / "gpu-check"
MEASURED = ROOT / "build" / "gpu-measure"


class NoGpuError(Exception):
    """With the reason in words."""


def look(output: Path) -> tuple[dict[str, Any], Outcome]:
    """The machine, seen by a process of its own: a driver that hangs takes only its time."""
    log = output / f"{ENVIRONMENT}.log"
    command = [sys.executable, "-m", "tests.gpu.machine"]
    outcome = run(Part(ENVIRONMENT, "what is here", LOOK_LIMIT, [command]), log)
    if outcome.outcome != "passed":
        raise NoGpuError(f"looking for one {outcome.outcome} ({outcome.detail})")
    machine: dict[str, Any] = json.loads(outcome.detail)
    if "no_gpu" in machine:
        raise NoGpuError(machine["no_gpu"])
    words = report.in_words(machine)
    return machine, Outcome(outcome.outcome, outcome.seconds, outcome.limit, words)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", action="append", metavar="NAME", help="only this; repeatable")
    parser.add_argument("--resume", action="store_true", help="not what has passed already")
    parser.add_argument("--list", action="store_true", help="name the parts, run none")
    parser.add_argument("--measure", action="store_true", help="the parts that measure instead")
    parser.add_argument("--output", type=Path, metavar="DIR", help="for results")
    options = parser.parse_args(given)
    options.output = (options.output or (MEASURED if options.measure else OUTPUT)).resolve()
    return options


def listed(every: Sequence[Part]) -> str:
    rows = [(ENVIRONMENT, "always first", f"{LOOK_LIMIT}", "")]
    rows += [(part.name, part.what, f"{part.limit:.0f}", part.skipped) for part in every]
    total = LOOK_LIMIT + sum(part.limit for part in every if not part.by_name)
    return f"{report.table(rows)}\ntogether at most {total:.0f} s"


@dataclass
class Check:
    """One call: what was found so far, by part in their order; None where nothing was."""

    output: Path
    machine: dict[str, Any]
    outcomes: dict[str, Outcome | None]

    def known(self) -> dict[str, Outcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome is not None}

    def save(self) -> None:
        report.save(self.output, self.machine, self.known())

    def run(self, part: Part, place: str) -> None:
        """`Stopped` leaves the part interrupted."""
        print(f"[{place}] {part.name}: {part.what}, at most {part.limit:.0f} s ...", flush=True)
        log, start = self.output / f"{part.name}.log", time.monotonic()
        try:
            outcome = run(part, log)
        except Stopped:
            seconds = time.monotonic() - start
            self.outcomes[part.name] = Outcome("interrupted", seconds, part.limit, "")
            raise
        self.outcomes[part.name] = outcome
        self.save()
        print(f"    {outcome.outcome} in {outcome.seconds:.1f} s  {outcome.detail}", flush=True)
        if outcome.outcome in ("failed", "timed out") and log.exists():
            print(f"    the end of {log}:\n{tail(log)}", flush=True)

    def summarize(self) -> int:
        """Prints and writes all that is known; 1 if a part of it is bad."""
        self.save()
        print(f"\n{report.summary(self.known())}\n\nresults and logs: {self.output}", flush=True)
        bad = [o for o in self.known().values() if o.outcome in ("failed", "timed out")]
        return 1 if bad else 0


Look = Callable[[Path], tuple[dict[str, Any], Outcome]]
MakeParts = Callable[[dict[str, Any], Path], list[Part]]


def check(options: argparse.Namespace, look: Look, make_parts: MakeParts) -> int:
    """The exit status."""
    machine, environment = look(options.output)
    print(environment.detail, flush=True)
    every = make_parts(machine, options.output)
    names = [part.name for part in every]
    for name in options.part or []:
        if name not in names:
            print(f"there is no part {name!r}; there are {', '.join(names)}")
            return 1
    # Single parts and resumed calls stand beside what other calls have found.
    before = report.load(options.output, machine) if options.part or options.resume else {}
    found = {name: before.get(name) for name in [ENVIRONMENT, *names]}
    state = Check(options.output, machine, found | {ENVIRONMENT: environment})
    named = options.part or [part.name for part in every if not part.by_name]
    chosen = [part for part in every if part.name in named]
    print(f"{len(chosen)} parts, at most {sum(p.limit for p in chosen):.0f} s together", flush=True)
    try:
        for number, part in enumerate(chosen, 1):
            done = found[part.name] if options.resume else None
            if done is not None and done.outcome == "passed":
                print(f"[{number}/{len(chosen)}] {part.name}: passed before", flush=True)
            else:
                state.run(part, f"{number}/{len(chosen)}")
    except Stopped:
        state.summarize()
        raise
    return state.summarize()


def main(
    given: Sequence[str] | None = None, look: Look = look, make_parts: MakeParts | None = None
) -> int:
    """The exit status."""
    options = arguments(given)
    make_parts = make_parts or (measurements if options.measure else parts)
    if options.list:
        unknown = {
            "capability": "9.0",
            "compute_sanitizer": "compute-sanitizer",
            "xdist": True,
            "cupy": False,
        }
        print(listed(make_parts(unknown, options.output)))
        return 0
    try:
        with stoppable():
            return check(options, look, make_parts)
    except NoGpuError as error:
        print(f"no GPU here: {error}")
        return 2
    except Stopped as stopped:
        print(stopped, flush=True)
        return stopped.exit_status


if __name__ == "__main__":
    sys.exit(main())
