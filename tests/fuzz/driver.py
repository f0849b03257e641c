"""Runs workers over blocks of argument sets, outlives their crashes, and keeps the log."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.emulated import emulated_operators
from tests.emulated.module_builder import replacing

from . import sanitized_operators
from .contract import OPERATORS
from .worker import Work

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 500  # sets between two entries in the log
FORMAT = "rdk_cuda.fuzz"


class LogError(Exception):
    """A log that does not continue what is asked for."""


@dataclass
class Log:
    """What was tried and how it ended; the same file is the state of an unfinished run."""

    seed: int
    implementation: str
    operators: list[str]
    commit: str
    date: str
    tried: list[tuple[int, int]] = field(default_factory=list)  # ranges of indices, in order
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def new(cls, seed: int, implementation: str, operators: list[str]) -> Log:
        commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        described = subprocess.run(commit, capture_output=True, text=True).stdout.strip()
        today = datetime.date.today().isoformat()
        return cls(seed, implementation, operators, described or "unknown", today)

    @classmethod
    def continuing(cls, path: Path, seed: int, implementation: str, operators: list[str]) -> Log:
        """What `path` has, or a new one where there is no such file."""
        new = cls.new(seed, implementation, operators)
        if not path.exists():
            return new
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("format", None) != FORMAT:
            raise LogError(f"{path} is no log of this fuzzer; name another file")
        del stored["sets"], stored["accepted_share"]
        log = cls(**stored)
        log.tried = [(begin, end) for begin, end in log.tried]
        for name in ("seed", "implementation", "operators", "commit"):
            if getattr(log, name) != getattr(new, name):
                raise LogError(
                    f"{path} was begun with {name} {getattr(log, name)}, this is "
                    f"{getattr(new, name)}; name another file"
                )
        return log

    @property
    def sets(self) -> int:
        return sum(end - begin for begin, end in self.tried)

    @property
    def accepted(self) -> int:
        return sum(n for outcome, n in self.outcomes.items() if outcome.endswith(": accepted"))

    def add(self, begin: int, end: int, outcomes: dict[str, int], failures: list[Any]) -> None:
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.failures += failures
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*map(tuple, self.tried), (begin, end)]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self.tried = merged

    def untried(self, count: int) -> Iterator[tuple[int, int]]:
        """Blocks of the first ``count`` sets that are left."""
        position = 0
        for begin, end in [*self.tried, (count, count)]:
            while position < min(begin, count):
                until = min(position + BLOCK, begin, count)
                yield position, until
                position = until
            position = max(position, end)

    def write(self, path: Path) -> None:
        share = round(self.accepted / max(self.sets, 1), 4)
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        content |= {"sets": self.sets, "accepted_share": share, "seconds": round(self.seconds, 1)}
        content["outcomes"] = dict(sorted(self.outcomes.items()))
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def table(self) -> str:
        lines = [f"{'operator':<14}{'sets':>9}{'accepted':>10}{'refused':>9}{'failed':>8}"]
        for operator in self.operators:
            own = {k: n for k, n in self.outcomes.items() if k.startswith(f"{operator}: ")}
            total, accepted = sum(own.values()), own.get(f"{operator}: accepted", 0)
            failed = own.get(f"{operator}: FAILED", 0)
            refused = total - accepted - failed
            lines.append(f"{operator:<14}{total:>9}{accepted:>10}{refused:>9}{failed:>8}")
        kinds = sum(not k.endswith((": accepted", ": FAILED")) for k in self.outcomes)
        lines.append(
            f"{self.sets} argument sets, {self.accepted / max(self.sets, 1):.0%} accepted, "
            f"{kinds} kinds of errors, {len(self.failures)} failures, {self.seconds:.0f} s"
        )
        return "\n".join(lines)


def build(implementation: str, csrc: Path = emulated_operators.CSRC) -> Path:
    """The sanitized operators: those for the CPU, or the CUDA kernels in the emulator."""
    if implementation == "cpu":
        return sanitized_operators.build(csrc)
    return emulated_operators.build(csrc, sanitize=True)


@dataclass
class Fuzzer:
    log: Log
    library: Path
    processes: int = os.cpu_count() or 1
    path: Path | None = None  # where the log is kept
    progress: IO[str] | None = None
    stop_after: int = 20  # failures
    time_limit: float = 20.0  # seconds for one set

    def run(self, indices: Iterator[tuple[int, int]]) -> None:
        """Tries all blocks; what is done when an exception arrives stays in the log."""
        self.blocks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        for block in indices:
            self.blocks.put(block)
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.workers: list[subprocess.Popen[str]] = []
        self.errors: list[BaseException] = []
        start, before = time.monotonic(), self.log.seconds
        count = min(self.processes, self.blocks.qsize())
        threads = [threading.Thread(target=self.drive) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                threads[0].join(1.0) if threads[0].is_alive() else time.sleep(0.2)
                with self.lock:
                    self.log.seconds = before + time.monotonic() - start
                    self.report()
        finally:
            self.stop.set()
            for worker in self.workers:
                worker.kill()
            for thread in threads:
                thread.join()
            if self.path is not None:
                self.log.write(self.path)
        if self.errors:
            raise self.errors[0]

    def report(self) -> None:
        if self.path is not None:
            self.log.write(self.path)
        if self.progress is not None:
            log = self.log
            rate = f"{log.sets} sets, {len(log.failures)} failures, {log.seconds:.0f} s"
            print(f"\r{rate}", end="", file=self.progress, flush=True)

    def drive(self) -> None:
        """One worker process after the other, until nothing is left."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                while not self.stop.is_set() and not self.blocks.empty():
                    self.drive_worker(Path(folder))
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def drive_worker(self, folder: Path) -> None:
        index_file, complaints = folder / "index", folder / "stderr"
        log = self.log
        operators = tuple(log.operators)
        work = Work(
            log.seed,
            operators,
            log.implementation,
            str(self.library),
            str(index_file),
            self.time_limit,
        )
        index_file.write_text("-1")
        with complaints.open("wb") as stderr:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker", json.dumps(dataclasses.asdict(work))],
                cwd=ROOT,
                env=sanitized_operators.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,  # an interrupt is for us alone
            )
        self.workers.append(worker)
        assert worker.stdin is not None
        assert worker.stdout is not None
        while not self.stop.is_set():
            try:
                begin, end = self.blocks.get_nowait()
            except queue.Empty:
                break
            answer = ask(worker, begin, end)
            if answer is None and not self.stop.is_set():
                index = int(index_file.read_text())
                self.crashed(index, begin, end, worker.wait(), complaints)
                return
            if answer is not None:
                with self.lock:
                    log.add(begin, end, **answer)
                    if len(log.failures) >= self.stop_after:
                        self.stop.set()
        worker.stdin.close()
        worker.wait()

    def crashed(self, index: int, begin: int, end: int, code: int, complaints: Path) -> None:
        """Blames the set that a worker died of, and has the rest of its block tried again."""
        said = complaints.read_text(errors="replace")
        if not begin <= index < end:
            raise RuntimeError(f"a worker ended by itself with {code}: {said[-2000:]}")
        what = f"the process ended with {code}"
        if code == -signal.SIGALRM:
            what = f"no result within {self.time_limit:.0f} s"
        elif code < 0:
            what = f"the process ended by {signal.Signals(-code).name}"
        where = max(said.find("ERROR: AddressSanitizer"), said.find("runtime error:") - 200, 0)
        failure = {"index": index, "what": f"{what}\n{said[where : where + 3000]}"}
        for block in ((begin, index), (index + 1, end)):
            if block[0] < block[1]:
                self.blocks.put(block)
        with self.lock:
            self.log.add(index, index + 1, {"process: FAILED": 1}, [failure])
            if len(self.log.failures) >= self.stop_after:
                self.stop.set()


def ask(worker: subprocess.Popen[str], begin: int, end: int) -> dict[str, Any] | None:
    """A worker's answer about a block; None if it died."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(f"{begin} {end}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    answer = worker.stdout.readline()
    return json.loads(answer) if answer.endswith("\n") else None


ALL_OPERATORS = list(OPERATORS)
