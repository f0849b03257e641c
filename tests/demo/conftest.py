"""Every test here runs tiny models."""

import pytest

from examples.demo.corpus import calibration_files

SHORT = (
    *("--tokens", "8", "--positions", "400", "--virtual", "8", "--dynamic", "16"),
    *("--threads", "1"),
)


def read_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of the standard library takes seconds each time."""
    for module in ("calibration", "experiment"):
        name = f"examples.demo.{module}.training_files"
        monkeypatch.setattr(name, lambda: calibration_files()[:4])


@pytest.fixture(autouse=True)
def _little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read_little_text(monkeypatch)


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """They run slower in several."""
