"""Builds broken kernels and runs the tests that must notice."""

from __future__ import annotations

import datetime
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

from tests.emulated.emulated_operators import CSRC, build
from tests.emulated.module_builder import BuildError

from . import cpu_tree
from .mutants import MUTANTS, Mutant

ROOT = CSRC.parent
TIMEOUT = 240  # seconds
WIDTH = max(len(mutant.name) for mutant in MUTANTS)  # of the table's first column


@dataclass(frozen=True)
class Outcome:
    mutant: str
    caught: bool
    how: str
    seconds: float


def of_the_day(count: int, day: datetime.date | None = None) -> list[Mutant]:
    """``count`` mutants that change from day to day until all have had their turn."""
    first = (day or datetime.date.today()).toordinal() * count
    return [MUTANTS[(first + i) % len(MUTANTS)] for i in range(count)]


def run(mutants: Iterable[Mutant]) -> Iterator[Outcome]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(run_one, mutants)


def run_one(mutant: Mutant) -> Outcome:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        csrc = Path(shutil.copytree(CSRC, Path(folder) / "csrc"))
        mutant.apply(csrc)
        try:
            caught, how = noticed(mutant, csrc, Path(folder) / "tree")
        except BuildError as error:
            caught, how = False, f"does not compile: {str(error)[:300]}"
    return Outcome(mutant.name, caught, how, time.monotonic() - start)


def noticed(mutant: Mutant, csrc: Path, tree: Path) -> tuple[bool, str]:
    """Build a broken source tree and run the mutant's tests."""
    if mutant.file.startswith("cpu/"):
        return run_tests(mutant.tests, cpu_tree.tree(tree, cpu_tree.build(csrc)), {})
    return run_tests(mutant.tests, ROOT, {"RDK_EMULATED_MODULE": str(build(csrc))})


def run_tests(tests: Sequence[str], root: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Whether the tests notice, and which of them or how."""
    paths = [f"tests/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-qx", "-rf", "--tb=no", "-p", "no:cacheprovider"]
    try:
        result = subprocess.run(
            [*command, *paths],
            cwd=root,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return True, f"hangs in {paths[0]}"
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


def total(outcomes: Sequence[Outcome]) -> str:
    return f"{sum(outcome.caught for outcome in outcomes)} of {len(outcomes)} mutants caught"
