"""Builds, tests, sanitizes and measures the operators on a GPU, in nine minutes for each command.

python3 -m tests.gpu                     build and test: `make gpu-check`
python3 -m tests.gpu --sanitize          compute-sanitizer's four tools: `make gpu-sanitize`
python3 -m tests.gpu --measure           figures: `make gpu-measure`
python3 -m tests.gpu --list              the parts and their limits; also of the other commands
python3 -m tests.gpu --part build --part graphs
python3 -m tests.gpu --resume            what has not passed yet for these sources and this GPU
python3 -m tests.gpu --dry-run           without a GPU: the CPU operators take its place

It needs torch with CUDA, nvcc, ninja, pytest and numpy, and no network. The operators are built in
place, for this GPU only (RDK_ARCHS for others). RDK_COMMIT names the commit where there is no git.
After every part all logs, tables and figures so far are packed into one archive, in the folder that
--results names. Parts that are run by name alone, such as `cupy`, kernels compiled without nvcc,
`properties`, `growth` and
`compiled`, each fit into a command of their own.
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
from .parts import parts, sanitizers
from .running import (
    Outcome,
    Part,
    Stopped,
    run,
    stoppable,
    tail,
)

Look = Callable[[argparse.Namespace], tuple[dict[str, Any], Outcome]]
MakeParts = Callable[[dict[str, Any], Path], list[Part]]
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Command:
    """What is run together.

    Attributes:
        look_limit: seconds for the machine, in which `import torch` is the first of all or not.
    """

    name: str
    look_limit: int
    make_parts: MakeParts


CHECK = Command("gpu-check", 120, parts)
SANITIZE = Command("gpu-sanitize", 60, sanitizers)  # gpu-check has built what it runs, so looked
MEASURE = Command("gpu-measure", 120, measurements)


class NoGpuError(Exception):
    """With the reason in words."""


def look(options: argparse.Namespace) -> tuple[dict[str, Any], Outcome]:
    """The machine, seen by a process of its own: a driver that hangs takes only its time."""
    log, limit = options.output / f"{ENVIRONMENT}.log", options.command.look_limit
    command = [sys.executable, "-m", "tests.gpu.machine"]
    outcome = run(Part(ENVIRONMENT, "what is here", limit, [command]), log)
    if outcome.outcome != "passed":
        raise NoGpuError(f"looking for one {outcome.outcome} ({outcome.detail})")
    machine: dict[str, Any] = json.loads(outcome.detail)
    no_gpu = machine.pop("no_gpu", None)
    if options.dry_run:
        machine |= {"gpu": "dry run on the CPU", "capability": "9.0", "dry_run": True}
    elif no_gpu is not None:
        raise NoGpuError(no_gpu)
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
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, without a GPU")
    command = parser.add_mutually_exclusive_group()
    command.add_argument("--measure", action="store_true", help="the parts that measure instead")
    command.add_argument("--sanitize", action="store_true", help="the sanitizers instead")
    parser.add_argument("--output", type=Path, metavar="DIR", help="for logs and figures")
    parser.add_argument("--results", type=Path, metavar="DIR", help="for the archive of --output")
    options = parser.parse_args(given)
    options.command = MEASURE if options.measure else SANITIZE if options.sanitize else CHECK
    name = options.command.name + ("-dry-run" if options.dry_run else "")
    options.output = (options.output or ROOT / "build" / name).resolve()
    options.results = (options.results or options.output.parent).resolve()
    return options


def listed(look_limit: int, every: Sequence[Part]) -> str:
    rows = [(ENVIRONMENT, "always first", f"{look_limit}", "")]
    rows += [(part.name, part.what, f"{part.limit:.0f}", part.skipped) for part in every]
    total = look_limit + sum(part.limit for part in every if not part.by_name)
    return f"{report.table(rows)}\ntogether at most {total:.0f} s"


@dataclass
class Check:
    """One call: what was found so far, by part in their order; None where nothing was."""

    output: Path
    results: Path
    machine: dict[str, Any]
    outcomes: dict[str, Outcome | None]

    def known(self) -> dict[str, Outcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome is not None}

    def save(self) -> str:
        """Where it is, and what is not."""
        report.save(self.output, self.machine, self.known())
        archive, left_out = report.archive(self.output, self.results)
        return f"{archive}" + (f", without {', '.join(left_out)}" if left_out else "")

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
        archive = self.save()
        print(f"\n{report.summary(self.known())}\n", flush=True)
        print(f"results and logs: {self.output}\nas one file: {archive}", flush=True)
        bad = [o for o in self.known().values() if o.outcome in ("failed", "timed out")]
        return 1 if bad else 0


def check(options: argparse.Namespace, look: Look, make_parts: MakeParts) -> int:
    """The exit status."""
    machine, environment = look(options)
    print(environment.detail, flush=True)
    every = make_parts(machine, options.output)
    names = [part.name for part in every]
    for name in options.part or []:
        if name not in names:
            print(f"there is no part {name!r}; there are {', '.join(names)}")
            return 1
    # Single parts and resumed calls add to what other calls have found.
    before = report.load(options.output, machine) if options.part or options.resume else {}
    found = {name: before.get(name) for name in [ENVIRONMENT, *names]}
    known = found | {ENVIRONMENT: environment}
    state = Check(options.output, options.results, machine, known)
    state.save()
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
    make_parts = make_parts or options.command.make_parts
    if options.list:
        unknown = {
            "capability": "9.0",
            "compute_sanitizer": "compute-sanitizer",
            "xdist": True,
            "cupy": False,
            "dry_run": options.dry_run,
        }
        print(listed(options.command.look_limit, make_parts(unknown, options.output)))
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
