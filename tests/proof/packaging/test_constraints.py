"""What is installed has committed versions, which satisfy what pyproject.toml asks for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.constraints import ALL, PIN, VLLM, pinned

from .distributions import ROOT

if sys.version_info < (3, 11):
    import tomli as tomllib
else:
    import tomllib

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
# torch brings a version of CUDA's compiler, and asks for that one.
WITHOUT = {"torch", "nvidia-cuda-nvrtc"}
Asked = list[tuple[str, Requirement]]


def _asked() -> Asked:
    """Every requirement, with the extra that has it."""
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = {
        "build": content["build-system"]["requires"],
        "": content["project"]["dependencies"],
        **content["project"]["optional-dependencies"],
    }
    found = [(extra, Requirement(line)) for extra, lines in groups.items() for line in lines]
    return [(extra, asked) for extra, asked in found if asked.name != "rdk_cuda"]


def _faults(asked: Asked, pins: dict[str, Version]) -> Iterator[str]:
    for extra, requirement in asked:
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None and requirement.name not in WITHOUT:
            yield f"[{extra}] {requirement.name} has no pin"
        elif pin is not None and pin not in requirement.specifier:
            yield f"[{extra}] {requirement} does not allow {pin}"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_a_pin_that_satisfies_it(python: str) -> None:
    asked = _asked()
    pins = pinned(ALL, python)
    assert list(_faults(asked, pins)) == []
    # Controls: one pin less, another version, and what no line asks for.
    assert list(_faults(asked, {**pins, "numpy": Version("99")}))
    for name in ("numpy", "transformers", "pytest", "setuptools"):
        less = {other: pin for other, pin in pins.items() if other != name}
        assert any(said.endswith(f"{name} has no pin") for said in _faults(asked, less))


@pytest.mark.parametrize("python", PYTHONS[1:])
def test_vllms_environment_has_pins_for_the_demo_and_its_tests(python: str) -> None:
    used = [
        (extra, asked)
        for extra, asked in _asked()
        if extra in ("", "build", "demo") or asked.name in ("pytest", "hypothesis")
    ]
    assert list(_faults(used, pinned(VLLM, python))) == []


@pytest.mark.parametrize("path", [ALL, VLLM], ids=["all", "vllm"])
def test_the_files_name_public_versions_only(path: Path) -> None:
    first, *lines = path.read_text().splitlines()
    assert "`make constraints`" in first
    assert [line for line in lines if not PIN.fullmatch(line)] == []
    assert not PIN.fullmatch("torch==2.13.0+cpu")
    assert not PIN.fullmatch("numpy @ file:///x")


def test_requirements_that_are_pinned_have_an_upper_bound() -> None:
    open_ended = {
        asked.name
        for extra, asked in _asked()
        if not any(part.operator in ("<", "==", "<=") for part in asked.specifier)
    }
    # torch keeps its ABI.
    assert open_ended - {"transformers"} == {"torch", "wheel", "ninja"}


def test_an_environment_of_the_user_is_never_removed(tmp_path: Path) -> None:
    """Where it has no pip, as those of uv, that is installed into it."""
    goal = [f"VIRTUAL_ENV={tmp_path}", f"{tmp_path}/.rdk-torch"]
    said = subprocess.run(["make", "-n", *goal], cwd=ROOT, capture_output=True, text=True).stdout
    assert "-m ensurepip" in said
    assert "rm -rf" not in said


def test_every_installation_of_the_makefile_uses_them() -> None:
    makefile = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text())
    installs = re.findall(r"pip install(?! --no-deps|.*--no-deps)(.*)", makefile)
    without = [line for line in installs if "constraints.txt" not in line]
    assert [line for line in without if "TORCH" not in line and "uv" not in line] == []
    assert len(installs) - len(without) >= 5
