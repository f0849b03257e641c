"""`make` says what it installs, and how much, before it begins; and is not silent meanwhile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .distributions import ROOT

# Says what it is asked to run, and whether torch is there.
PYTHON = """#!/bin/sh
case "$2" in "import torch"*) exit ${TORCH_MISSING:-0};; esac
[ "$*" = "-m pip --version" ] || echo "RUN $*"
"""


def installed(environment: Path, *variables: str, torch: bool) -> list[str]:
    """What `make install` prints, line by line, into an environment whose Python is made up."""
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    own = {"VIRTUAL_ENV": str(environment), "TORCH_MISSING": "0" if torch else "1"}
    done = subprocess.run(
        ["make", "--no-print-directory", "install", *variables],
        cwd=ROOT,
        env=os.environ | own | {"MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_installed_and_how_large_is_said_before_it_begins(tmp_path: Path) -> None:
    lines = installed(tmp_path, torch=False)
    (begins,) = [i for i, line in enumerate(lines) if line == "RUN -m pip install torch==2.13.0"]
    said = " ".join(lines[:begins])
    assert str(tmp_path) in said
    assert "torch==2.13.0 with CUDA, about 5 GB" in said
    assert "make demo TORCH_INDEX=" in said


def test_the_build_for_the_cpu_comes_from_the_index_that_is_named(tmp_path: Path) -> None:
    lines = installed(tmp_path, "TORCH_INDEX=https://index.invalid/cpu", torch=False)
    (torch,) = [line for line in lines if line.endswith("torch==2.13.0") and "RUN" in line]
    assert torch.startswith("RUN -m pip install --index-url https://index.invalid/cpu ")
    assert "5 GB" not in " ".join(lines)


def test_a_torch_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    lines = installed(tmp_path, torch=True)
    assert "torch==" not in " ".join(lines)
    assert "5 GB" not in " ".join(lines)


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_pages_say_how_to_make_the_environment_active(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "`. .venv/bin/activate`" in text
    assert "`make demo TORCH_INDEX=URL`" in text


@pytest.mark.parametrize("torch", [True, False])
def test_no_long_step_is_silent(tmp_path: Path, torch: bool) -> None:
    lines = installed(tmp_path, torch=torch)
    build = next(i for i, line in enumerate(lines) if line.startswith("RUN") and "-e ." in line)
    assert any("minutes" in line for line in lines[:build] if not line.startswith("RUN"))
    assert [line for line in lines if "--quiet" in line and "setuptools" not in line] == []
    assert f". {tmp_path}/bin/activate" in lines[-1]
