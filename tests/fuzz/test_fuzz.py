"""Random arguments: an operator refuses them by name or keeps its promises, and never strays.

The operators run under AddressSanitizer and UBSan, in processes of their own. The controls are
operators that are broken on purpose.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulated.emulated_operators import CSRC
from tests.mutation.mutants import Mutant

from .calls import make_call
from .contract import RefusedError, sizes_of
from .driver import (
    ALL_OPERATORS,
    Fuzzer,
    Log,
    LogError,
    build,
)

pytestmark = pytest.mark.slow

SETS = 100_000
SETS_FOR_KERNELS = 1_000  # the emulator is slow


def failures(log: Log) -> str:
    return "\n".join(f"--only {failure['index']}: {failure['what']}" for failure in log.failures)


@pytest.mark.parametrize(("implementation", "count"), [("cpu", SETS), ("cuda", SETS_FOR_KERNELS)])
def test_any_arguments_are_refused_or_served_as_promised(implementation: str, count: int) -> None:
    log = Log.new(0, implementation, ALL_OPERATORS)
    Fuzzer(log, build(implementation)).run(log.untried(count))
    assert not log.failures, failures(log)
    assert log.sets == sum(log.outcomes.values()) == count
    print(log.table())
    for operator in ALL_OPERATORS:
        own = {k: n for k, n in log.outcomes.items() if k.startswith(f"{operator}: ")}
        assert 0.4 < own[f"{operator}: accepted"] / sum(own.values()) < 0.8


def test_every_argument_is_refused_for_something() -> None:
    """Judged by the contract alone: the random changes leave nothing out."""
    reasons: Counter[tuple[str, str]] = Counter()
    for index in range(6000):
        call = make_call(0, index, tuple(ALL_OPERATORS))
        try:
            sizes_of(call.operator, call.arguments)
        except RefusedError as refused:
            reasons[call.operator, str(refused).split()[0]] += 1
    for operator in ALL_OPERATORS:
        missing = set(make_call(0, 0, (operator,)).arguments) - {
            n for o, n in reasons if o == operator
        }
        assert not missing, f"{operator}: {missing}"


# ------------------------------------------------------------------------------------- controls

# Substitutions in csrc/ops/step_keys.cpp, and what the fuzzer reports of them.
RUN = "run(params, seeds);"
FATAL = {
    "heap-buffer-overflow": ("product(shape)}", "product(shape) + 1}"),
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
        'if (product(shape)) checks.plain("positions"',
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
    log = Log.new(0, "cpu", ["step_keys"])
    Fuzzer(log, build("cpu", csrc), processes=1, **options).run(log.untried(300))
    return failures(log)


@pytest.mark.parametrize("report", FATAL)
def test_an_operator_that_ends_or_hangs_its_process_is_reported(
    report: str, tmp_path: Path
) -> None:
    assert report in fuzz_broken([FATAL[report]], tmp_path, stop_after=1, time_limit=2.0)


def test_an_operator_that_breaks_its_promises_is_reported(tmp_path: Path) -> None:
    reported = fuzz_broken(list(UNPROMISED.values()), tmp_path, stop_after=1000)
    for report in UNPROMISED:
        assert report in reported


# ------------------------------------------------------------------------------------- the log


def test_a_run_that_is_continued_tries_every_set_once(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    log = Log.new(3, "cpu", ALL_OPERATORS)
    log.add(500, 900, {"draft: accepted": 400}, [])
    log.write(path)
    again = Log.continuing(path, 3, "cpu", ALL_OPERATORS)
    assert (again.tried, again.outcomes) == ([(500, 900)], log.outcomes)
    left = list(again.untried(1600))
    assert left == [(0, 500), (900, 1400), (1400, 1600)]
    for begin, end in left:
        again.add(begin, end, {}, [])
    assert again.tried == [(0, 1600)]


def test_a_log_of_another_run_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    Log.new(3, "cpu", ALL_OPERATORS).write(path)
    with pytest.raises(LogError, match="begun with seed 3, this is 4"):
        Log.continuing(path, 4, "cpu", ALL_OPERATORS)
    path.write_text(json.dumps({"format": "another"}))
    with pytest.raises(LogError, match="no log of this fuzzer"):
        Log.continuing(path, 3, "cpu", ALL_OPERATORS)
