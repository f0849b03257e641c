"""Kernels broken on purpose are noticed by the tests that hold the promise they break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.proof.emulated.emulated_operators import CSRC

from .mutants import MUTANTS, ROOT, SOURCE, Mutant, StaleMutantError
from .running import of_changed_files, run_one

NONE = pytest.mark.skip("the last 30 commits changed no file with a mutant, or there are fewer")
CHANGED = [pytest.param(mutant, id=mutant.name) for mutant in of_changed_files()]


def test_every_mutant_applies_to_the_kernels_as_they_are_and_names_tests_that_exist(
    tmp_path: Path,
) -> None:
    assert len(MUTANTS) == SOURCE.read_text(encoding="utf-8").count("\n[")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    csrc = Path(shutil.copytree(CSRC, tmp_path / "csrc"))
    for mutant in MUTANTS:
        mutant.apply(csrc)
        assert (csrc / mutant.file).read_text() != (CSRC / mutant.file).read_text()
        shutil.copy(CSRC / mutant.file, csrc / mutant.file)
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
    MUTANTS[0].apply(csrc)
    with pytest.raises(StaleMutantError, match="has the text it replaces 0 times"):
        MUTANTS[0].apply(csrc)


@pytest.mark.ci
@pytest.mark.parametrize("mutant", CHANGED or [pytest.param(None, marks=NONE, id="none")])
def test_a_mutant_of_a_file_that_changed_is_caught(mutant: Mutant) -> None:
    outcome = run_one(mutant)
    assert outcome.caught, outcome.how


@pytest.mark.night
def test_a_change_that_breaks_nothing_is_not_reported_as_caught() -> None:
    """The control: the tests pass on unbroken kernels, so it is the break that they notice."""
    harmless = Mutant(
        "nothing",
        "cuda/step_keys.cu",
        "static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;",
        "threadIdx.x + static_cast<int64_t>(blockIdx.x) * kThreads;",
        ("tests/operators/test_step_keys.py",),
    )
    outcome = run_one(harmless)
    assert (outcome.caught, outcome.how) == (False, "no test fails")
