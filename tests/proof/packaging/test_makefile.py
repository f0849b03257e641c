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


def _made(environment: Path, *arguments: str, torch_is_there: bool = True) -> list[str]:
    """What make prints into an environment whose Python is made up."""
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    own = {"VIRTUAL_ENV": str(environment), "TORCH_MISSING": "0" if torch_is_there else "1"}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=os.environ | own | {"MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("index", ["", "https://index.invalid/cpu"])
@pytest.mark.parametrize("torch_is_there", [True, False])
def test_what_is_installed_and_how_large_is_said_before_it_begins(
    tmp_path: Path, torch_is_there: bool, index: str
) -> None:
    lines = _made(tmp_path, "install", f"TORCH_INDEX={index}", torch_is_there=torch_is_there)
    printed = "\n".join(lines)

    torch = [i for i, line in enumerate(lines) if "RUN" in line and "torch==" in line]
    if torch_is_there:
        assert torch == []
        assert "5 GB" not in printed
    else:
        (begins,) = torch
        said = " ".join(lines[:begins])
        options = f"--index-url {index} " if index else ""
        assert lines[begins] == f"RUN -m pip install {options}torch==2.13.0"
        assert str(tmp_path) in said
        assert ("torch==2.13.0 with CUDA, about 5 GB" in said) == (not index)
        assert ("make demo TORCH_INDEX=" in said) == (not index)

    # No long step is silent.
    build = next(i for i, line in enumerate(lines) if line.startswith("RUN") and "-e ." in line)
    assert any("minutes" in line for line in lines[:build] if not line.startswith("RUN"))
    assert [line for line in lines if "--quiet" in line and "setuptools" not in line] == []
    assert f". {tmp_path}/bin/activate" in lines[-1]


def test_the_operators_are_compiled_once_until_their_sources_change(tmp_path: Path) -> None:
    def compiled(*arguments: str) -> int:
        lines = _made(tmp_path, *arguments)
        return sum(line.startswith("RUN") and "-e ." in line for line in lines)

    extras = [f"{tmp_path}/.rdk-{extra}" for extra in ("demo", "dev", "gemma")]
    assert compiled("install") == 1
    assert compiled("lint", *extras) == 0
    for source in ("csrc/params.h", "csrc/cpu/verify.cpp", "setup.py"):
        assert compiled("-W", source, *extras) == 1


def test_nothing_that_make_writes_is_tracked_not_even_as_a_link() -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "safe.directory=*", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    if not git("ls-files"):
        pytest.skip("a source distribution, without git")
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == ""
    assert [line for line in git("ls-files", "--stage").splitlines() if line[:6] == "120000"] == []
    # A pattern that ends in a slash lets a link of that name in.
    made = [".venv", ".venv-vllm", ".vllm", ".sglang"]
    assert git("check-ignore", "--no-index", *made).split() == made
