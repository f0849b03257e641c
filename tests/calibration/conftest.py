"""Models so small that they run slower in several threads than in one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None: ...
