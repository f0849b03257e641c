"""Runs a part within its time, and ends all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .machine import ROOT

GRACE = 5.0  # seconds between asking processes to end and ending them


@dataclass(frozen=True)
class Part:
    """Commands that run one after the other, until one fails.

    Attributes:
        limit: seconds for all of them.
        skipped: why the part cannot run here, and is not run; empty: it can.
        by_name: whether it is run only when its name is given.
    """

    name: str
    what: str
    limit: float
    commands: Sequence[Sequence[str]]
    environment: dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    by_name: bool = False


@dataclass(frozen=True)
class Outcome:
    """`outcome` is passed, failed, timed out, skipped or interrupted."""

    outcome: str
    seconds: float
    limit: float
    detail: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 1)}


class Stopped(BaseException):
    """Ctrl-C, or SIGTERM from the caller."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_status = 128 + number


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT, also where it was ignored at the start, and SIGTERM raise `Stopped`."""

    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(part: Part, log: Path) -> Outcome:
    """Runs the part; what it prints goes to the log. `Stopped` ends its processes and passes on."""
    start = time.monotonic()

    def outcome(word: str, detail: str) -> Outcome:
        return Outcome(word, time.monotonic() - start, part.limit, detail)

    log.unlink(missing_ok=True)
    if part.skipped:
        return outcome("skipped", part.skipped)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        for command in part.commands:
            left = part.limit - (time.monotonic() - start)
            status = run_command(command, left, file.fileno(), part.environment)
            if status is None:
                found = f": {said}" if (said := last_line(log)) else ""
                return outcome("timed out", f"ended after its {part.limit:.0f} s{found}")
            if status != 0:
                detail = last_line(log) or "it printed nothing"
                return outcome("failed", f"exit status {status}: {detail}")
    return outcome("passed", last_line(log))


def run_command(
    command: Sequence[str], limit: float, output: int, environment: dict[str, str]
) -> int | None:
    """The exit status, or None where the limit was reached."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # and so a process group of its own
    )
    try:
        return process.wait(max(limit, 0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it started, politely first.

    After Ctrl-C pytest and the benchmarks still say what they have found.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and group_lives(process):
            time.sleep(0.02)
    process.wait()


def group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # or a finished leader would count as alive
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def last_line(log: Path) -> str:
    """The last line that says something, which for pytest and the sanitizers is the summary."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.strip("= \t") for line in lines]
    return next((line for line in reversed(said) if line), "")


def tail(log: Path, lines: int = 40) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(line[:200] for line in text.splitlines()[-lines:])
