"""What every test of the integrations has in common."""

from typing import Any

import pytest

from .fake_sglang import installed


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Every test here runs tiny models."""


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, in the place of SGLang."""
    return installed(monkeypatch)
