"""Builds broken kernels and runs the tests that must notice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.proof.emulated.emulated_operators import CSRC, build
from tests.proof.emulated.module_builder import BuildError

from . import cpu_tree
from .mutants import MUTANTS, Mutant

ROOT = CSRC.parent
TIMEOUT = 600  # seconds; the emulator reports threads that wait for ever
WIDTH = max(len(mutant.name) for mutant in MUTANTS)  # of the table's first column
KERNELS = sorted((path.stem for path in CSRC.glob("cuda/*.cu")), key=len, reverse=True)


@dataclass(frozen=True)
class Outcome:
    mutant: str
    caught: bool
    how: str
    seconds: float


def of_changed_files(most: int = 3) -> list[Mutant]:
    """The first mutant of each file that the last 30 commits changed, most changed lines first.

    None where the history is shorter, or there is no git.
    """
    if shutil.which("git") is None:
        return []
    git = ["git", "diff", "--numstat", "--no-renames", "--relative", "HEAD~30"]
    diff = subprocess.run(git, cwd=CSRC, capture_output=True, text=True).stdout
    lines = {
        file: int(added) + int(removed)
        for added, removed, file in (line.split("\t") for line in diff.splitlines())
    }
    first = {mutant.file: mutant for mutant in reversed(MUTANTS)}
    return [first[f] for f in sorted(first.keys() & lines, key=lambda f: (-lines[f], f))][:most]


def run(mutants: Iterable[Mutant]) -> Iterator[Outcome]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(run_one, mutants)


def run_one(mutant: Mutant) -> Outcome:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        csrc = Path(shutil.copytree(CSRC, Path(folder) / "csrc"))
        mutant.apply(csrc)
        try:
            caught, how = noticed(mutant, csrc)
        except BuildError as error:
            caught, how = False, f"does not compile: {str(error)[:300]}"
    return Outcome(mutant.name, caught, how, time.monotonic() - start)


def noticed(mutant: Mutant, csrc: Path) -> tuple[bool, str]:
    """Build a broken source tree and run the mutant's tests."""
    if mutant.file.startswith("cpu/"):
        return run_tests(mutant.tests, cpu_tree.complete(csrc), {})
    # A mutant is compiled for a few seconds of tests, and -O2 takes verify.cu four times as long.
    module = build(csrc, optimize=["-O0"])
    tests = list(mutant.tests)
    if all("test_kernels_schedules" in test for test in tests):  # all kernels are in each of them
        stem = Path(mutant.file).stem
        tests += ["-k", next((kernel for kernel in KERNELS if stem.startswith(kernel)), "")]
    return run_tests(tests, ROOT, {"RDK_EMULATED_MODULE": str(module)})


def run_tests(tests: Sequence[str], root: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Whether the tests notice, and which of them or how."""
    command = [sys.executable, "-m", "pytest", "-qx", "-rf", "--tb=no", "-p", "no:cacheprovider"]
    try:
        result = subprocess.run(
            [*command, *tests],
            cwd=root,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return False, f"not done after {TIMEOUT} s: {tests[0]}"
    if result.returncode < 0:
        return True, f"crashes with signal {-result.returncode}"
    failed = re.search(r"^FAILED tests/(.*?)(?: - |$)", result.stdout, re.MULTILINE)
    if failed:
        return True, failed[1]
    if result.returncode == 0:
        return False, "no test fails"
    return False, f"pytest fails otherwise: {(result.stdout + result.stderr)[-600:]}"


def line(outcome: Outcome) -> str:
    verdict = "caught" if outcome.caught else "NOT CAUGHT"
    return f"{outcome.mutant:<{WIDTH}}  {verdict}  {outcome.seconds:5.1f} s  {outcome.how}"
