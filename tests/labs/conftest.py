"""Tests of labs run at night, but for `test_smoke.py` and `test_moved.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

FAST = {"test_moved.py", "test_smoke.py"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in FAST:
            item.add_marker(pytest.mark.night)


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Every test here runs tiny models."""
