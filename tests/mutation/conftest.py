from __future__ import annotations

import pytest

from .running import Outcome, line, total

OUTCOMES = pytest.StashKey[list[Outcome]]()


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    """What ran, for the table at the end of the session."""
    return request.config.stash.setdefault(OUTCOMES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcomes = config.stash.get(OUTCOMES, [])
    if outcomes:
        terminalreporter.section("mutants of the day (all: python -m tests.mutation --all)")
        for outcome in outcomes:
            terminalreporter.write_line(line(outcome))
        terminalreporter.write_line(total(outcomes))
