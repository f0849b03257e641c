"""Runs workers over blocks of argument sets, outlives their crashes, and keeps the log."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdk_cuda._ops.contract import OPERATORS
from tests.proof.emulated import emulated_operators
from tests.proof.emulated.module_builder import replacing

from . import sanitized_operators
from .worker import Work

ROOT = Path(__file__).resolve().parents[3]
ALL_OPERATORS = list(OPERATORS)
BLOCK = 500  # sets that a worker is asked for at once


@dataclass
class Log:
    """What was tried and how it ended."""

    seed: int
    implementation: str
    operators: list[str]
    sets: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, sets: int, outcomes: dict[str, int], failures: list[Any]) -> None:
        self.sets += sets
        self.outcomes.update(outcomes)
        self.failures += failures

    def of(self, operator: str) -> tuple[int, int, int]:
        """How many sets were tried, accepted and failed."""
        tried = sum(n for outcome, n in self.outcomes.items() if outcome.startswith(f"{operator}:"))
        return tried, self.outcomes[f"{operator}: accepted"], self.outcomes[f"{operator}: FAILED"]

    def write(self, path: Path) -> None:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        content = {"format": "rdk_cuda.fuzz", "commit": commit or "unknown"}
        content |= {"date": datetime.date.today().isoformat(), **dataclasses.asdict(self)}
        content["outcomes"] = dict(sorted(self.outcomes.items()))
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def table(self) -> str:
        lines = [f"{'operator':<14}{'sets':>9}{'accepted':>10}{'refused':>9}{'failed':>8}"]
        for operator in self.operators:
            tried, accepted, failed = self.of(operator)
            refused = tried - accepted - failed
            lines.append(f"{operator:<14}{tried:>9}{accepted:>10}{refused:>9}{failed:>8}")
        lines.append(f"{self.sets} sets, {len(self.failures)} failures, {self.seconds:.0f} s")
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
    stop_after: int = 20  # failures
    time_limit: float = 20.0  # seconds for one set

    def run(self, indices: range) -> None:
        """Tries all of them, each thread with a worker process of its own."""
        start = time.monotonic()
        self.lock, self.local = threading.Lock(), threading.local()
        self.workers: list[Worker] = []
        blocks = [indices[at : at + BLOCK] for at in range(0, len(indices), BLOCK)]
        with tempfile.TemporaryDirectory() as self.folder:
            try:
                with ThreadPoolExecutor(self.processes) as pool:
                    for _ in pool.map(self.run_block, blocks):
                        pass
            finally:
                for worker in self.workers:
                    worker.process.kill()
                    worker.process.communicate()
        self.log.seconds = time.monotonic() - start

    def run_block(self, block: range) -> None:
        if not block or len(self.log.failures) >= self.stop_after:
            return
        worker = getattr(self.local, "worker", None) or self.new_worker()
        answer = worker.ask(block)
        if answer is not None:
            with self.lock:
                self.log.add(len(block), **answer)
            return
        self.local.worker = None
        index, what = worker.died()
        if index not in block:
            raise RuntimeError(f"a worker ended by itself: {what}")
        with self.lock:
            failure = {"index": index, "what": what}
            self.log.add(1, {"process: FAILED": 1}, [failure])
        self.run_block(range(block.start, index))
        self.run_block(range(index + 1, block.stop))

    def new_worker(self) -> Worker:
        with self.lock:
            files = Path(self.folder) / str(len(self.workers))
            worker = self.local.worker = Worker(self, files)
            self.workers.append(worker)
        return worker


class Worker:
    """A process, the file with the index of the set that it tries, and what it complains of."""

    def __init__(self, fuzzer: Fuzzer, files: Path) -> None:
        files.mkdir()
        self.index, self.complaints = files / "index", files / "stderr"
        self.index.write_text("-1")
        self.time_limit, log = fuzzer.time_limit, fuzzer.log
        work = Work(
            log.seed,
            tuple(log.operators),
            log.implementation,
            str(fuzzer.library),
            str(self.index),
            fuzzer.time_limit,
        )
        with self.complaints.open("wb") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.proof.fuzz.worker",
                    json.dumps(dataclasses.asdict(work)),
                ],
                cwd=ROOT,
                env=sanitized_operators.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def ask(self, block: range) -> dict[str, Any] | None:
        """The answer about a block; None if the process died."""
        try:
            self.process.stdin.write(f"{block.start} {block.stop}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer.endswith("\n") else None

    def died(self) -> tuple[int, str]:
        """Of which set, and how."""
        code = self.process.wait()
        said = self.complaints.read_text(errors="replace")
        what = f"the process ended with {code}"
        if code == -signal.SIGALRM:
            what = f"no result within {self.time_limit:.0f} s"
        elif code < 0:
            what = f"the process ended by {signal.Signals(-code).name}"
        where = max(said.find("ERROR: AddressSanitizer"), said.find("runtime error:") - 200, 0)
        return int(self.index.read_text()), f"{what}\n{said[where : where + 3000]}"
