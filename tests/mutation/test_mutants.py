"""Kernels broken on purpose are noticed by the tests that hold the promise they break."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest

from tests.emulated.emulated_operators import CSRC

from .mutants import MUTANTS, SOURCE, TESTS, Mutant, StaleMutantError
from .running import (
    Outcome,
    of_the_day,
    run,
    run_one,
)

OF_THE_DAY = 4


def test_every_mutant_applies_to_the_kernels_as_they_are_and_names_tests_that_exist(
    tmp_path: Path,
) -> None:
    assert len(MUTANTS) == SOURCE.read_text(encoding="utf-8").count("\n[")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for number, mutant in enumerate(MUTANTS):
        csrc = Path(shutil.copytree(CSRC, tmp_path / str(number)))
        mutant.apply(csrc)
        assert (csrc / mutant.file).read_text() != (CSRC / mutant.file).read_text()
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
    with pytest.raises(StaleMutantError, match="has the text it replaces 0 times"):
        MUTANTS[0].apply(tmp_path / "0")


@pytest.mark.ci
def test_the_mutants_of_the_day_are_caught(outcomes: list[Outcome]) -> None:
    """A few a day, by date; the table at the end of the output says which and by what."""
    outcomes += run(of_the_day(OF_THE_DAY))
    assert all(outcome.caught for outcome in outcomes), "see the table at the end"


def test_every_mutant_has_its_day() -> None:
    day = datetime.date(2026, 1, 1)
    days = [day + datetime.timedelta(i) for i in range(-(-len(MUTANTS) // OF_THE_DAY))]
    turns = {mutant.name for day in days for mutant in of_the_day(OF_THE_DAY, day)}
    assert turns == {mutant.name for mutant in MUTANTS}


@pytest.mark.ci
def test_a_change_that_breaks_nothing_is_not_reported_as_caught() -> None:
    """The control: the tests pass on unbroken kernels, so it is the break that they notice."""
    harmless = Mutant(
        "nothing",
        "cuda/step_keys.h",
        "constexpr int kThreads = 256;",
        "constexpr int kThreads = 128;",
        ("operators/test_step_keys.py",),
    )
    outcome = run_one(harmless)
    assert (outcome.caught, outcome.how) == (False, "no test fails")
