"""What every test of the integrations has in common."""

import pytest


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Every test here runs tiny models."""
