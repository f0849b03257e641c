"""The command says what it tested, and nothing else: what it could not install is no success."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from . import __main__ as versions

ROOT = versions.ROOT


def answering(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> None:
    """Every process that is started ends like this."""
    ended = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(versions.subprocess, "run", lambda *_, **__: ended)


def indexed(monkeypatch: pytest.MonkeyPatch, newest: str) -> list[tuple[str, str]]:
    """The combinations that are tested, with an index whose newest Transformers is this."""
    tested: list[tuple[str, str]] = []

    def run(*combination: str) -> tuple[bool, str]:
        tested.append(combination)  # type: ignore[arg-type]
        return False, "one failed"

    monkeypatch.setattr(versions, "release", lambda *_: newest)
    monkeypatch.setattr(versions, "constrained", lambda _: "5.24.0")
    monkeypatch.setattr(versions, "run", run)
    return tested


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


@pytest.mark.parametrize(("code", "said"), [(0, ": 3 passed"), (1, ": FAILED: 3 passed; ")])
def test_a_line_has_both_releases_and_what_pytest_said(
    code: int,
    said: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(versions, "BUILD", tmp_path)
    monkeypatch.setattr(versions, "release", lambda package, which: f"{package}-{which}")
    monkeypatch.setattr(versions, "environment", lambda *_: "python")
    answering(monkeypatch, code, out="...\n3 passed\n")
    assert versions.main(["--transformers", "oldest", "--torch", "newest"]) == code
    line = f"Transformers transformers-oldest, torch torch-newest{said}"
    assert capsys.readouterr().out.startswith(line)


def test_without_options_the_oldest_and_newest_of_both_are_combined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = indexed(monkeypatch, "5.25.0")
    assert versions.main([]) == 1
    ends = ("oldest", "newest")
    assert tested == [(transformers, torch) for transformers in ends for torch in ends]


def test_the_newest_is_tested_only_if_it_is_not_the_constrained_one_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = indexed(monkeypatch, "5.24.0")
    assert versions.main(["--newest-if-new"]) == 0
    assert tested == []
    tested = indexed(monkeypatch, "5.25.0")
    assert versions.main(["--newest-if-new"]) == 0
    assert tested == [("5.25.0", "installed")]
    assert "one failed" in capsys.readouterr().out


def test_the_constrained_release_is_read_from_the_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, own = "python_version < '3'", "python_version >= '3'"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"# made\ntransformers==5.0.0 ; {other}\ntransformers==5.1.0 ; {own}\n")
    monkeypatch.setattr(versions, "ALL", constraints)
    assert versions.constrained("transformers") == "5.1.0"


def test_an_environment_that_has_other_releases_than_it_should_is_not_tested(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "BUILD", tmp_path)
    (tmp_path / "transformers-1-torch-2" / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (tmp_path / "transformers-1-torch-2" / "bin").mkdir()
    (tmp_path / "transformers-1-torch-2" / "bin" / "python").touch()
    monkeypatch.setattr(versions, "release", lambda _, which: which)
    monkeypatch.setattr(versions.venv, "create", lambda *_, **__: None)
    answering(monkeypatch, 0, out="1 3\n")
    passed, line = versions.run("1", "2")
    assert not passed
    assert "NOT TESTED: " in line
    assert line.endswith("has 1 and 3")
