"""The command says what it tested, and nothing else: what it could not install is no success."""

from __future__ import annotations

import subprocess

import pytest

from . import __main__ as versions

ROOT = versions.ROOT


def answering(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> None:
    """Every process that is started ends like this."""
    ended = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(versions.subprocess, "run", lambda *_, **__: ended)


def test_the_oldest_are_the_bounds_in_pyproject_and_every_path_exists() -> None:
    assert [versions.oldest(package) for package in ("transformers", "torch")] == ["5.0", "2.11"]
    for path in versions.TESTS:
        assert (ROOT / path).exists(), path


def test_an_index_that_does_not_answer_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, 1, err="WARNING: retrying\nERROR: No matching distribution\n")
    assert versions.main(["--transformers", "newest", "--torch", "installed"]) == 1
    line = "Transformers newest, torch installed: NOT TESTED: pip install transformers: ERROR: No"
    assert line in capsys.readouterr().out
    assert versions.main(["--newest-if-new"]) == 0
    assert "Transformers newest: NOT TESTED: pip install" in capsys.readouterr().out
