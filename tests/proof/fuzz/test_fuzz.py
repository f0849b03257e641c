"""Random arguments: an operator refuses them by name or keeps its promises, and never strays.

The operators run under AddressSanitizer and UBSan, in processes of their own. The controls are
operators that are broken on purpose.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.proof.emulated.emulated_operators import CSRC
from tests.proof.mutation.mutants import Mutant

from .driver import ALL_OPERATORS, Fuzzer, Log, build

pytestmark = pytest.mark.ci

SETS = 5_000  # `make night` tries more, and kernels: tests/night.py


def failures(log: Log) -> str:
    return "\n".join(f"--only {failure['index']}: {failure['what']}" for failure in log.failures)


def test_any_arguments_are_refused_or_served_as_promised() -> None:
    log = Log(0, "cpu", ALL_OPERATORS)
    Fuzzer(log, build("cpu")).run(range(SETS))
    assert not log.failures, failures(log)
    assert log.sets == sum(log.outcomes.values()) == SETS
    print(log.table())
    for operator in ALL_OPERATORS:
        tried, accepted, _ = log.of(operator)
        assert 0.4 < accepted / tried < 0.8


# ------------------------------------------------------------------------------------- controls

# Substitutions in csrc/ops/step_keys.cpp, and what the fuzzer reports of them.
RUN = "run(params, seeds);"
FATAL = {
    "heap-buffer-overflow": ("shape.product(),", "shape.product() + 1,"),
    "signed integer overflow": (
        RUN,
        "volatile int64_t sum = 0;"
        "if (params.count) sum = params.seeds[0] + params.positions[0];" + RUN,
    ),
    "no result within 2 s": (
        RUN,
        RUN + "for (volatile int64_t i = 0; params.count == 7;) i = i + 1;",
    ),
}
UNPROMISED = {
    "the error names no operator": ('checks("step_keys"', 'checks("draft"'),
    "accepted, although positions": (
        'checks.plain("positions"',
        'if (shape.product()) checks.plain("positions"',
    ),
    "a key is not that of the reference": (
        "return result;",
        "if (params.count == 1) params.step_keys[0] ^= 1; return result;",
    ),
    "another result when repeated": (
        "torch::stable::new_empty(seeds, shape);",
        "torch::stable::new_empty(seeds, shape); static int64_t calls = 0;",
    ),
    "an argument was modified": (
        RUN,
        RUN + "if (params.count == 2) const_cast<int64_t*>(params.seeds)[0] ^= 1;"
        "if (params.count == 3 && ++calls % 2 == 0) params.step_keys[0] ^= 1;",
    ),
}


def fuzz_broken(substitutions: list[tuple[str, str]], folder: Path, **options: Any) -> str:
    """The failures of `step_keys` with its source changed."""
    csrc = Path(shutil.copytree(CSRC, folder / "csrc"))
    for old, new in substitutions:
        Mutant("", "ops/step_keys.cpp", old, new, ()).apply(csrc)
    log = Log(0, "cpu", ["step_keys"])
    Fuzzer(log, build("cpu", csrc), processes=1, **options).run(range(300))
    return failures(log)


@pytest.mark.night
@pytest.mark.parametrize("report", FATAL)
def test_an_operator_that_ends_or_hangs_its_process_is_reported(
    report: str, tmp_path: Path
) -> None:
    assert report in fuzz_broken([FATAL[report]], tmp_path, stop_after=1, time_limit=2.0)


@pytest.mark.night
def test_an_operator_that_breaks_its_promises_is_reported(tmp_path: Path) -> None:
    reported = fuzz_broken(list(UNPROMISED.values()), tmp_path, stop_after=1000)
    for report in UNPROMISED:
        assert report in reported
