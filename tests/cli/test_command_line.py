"""What `python -m rdk_cuda` says of itself, what it imports, and that no model's own code runs."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.__main__ import main

from .calibrating import Pair, command, refusal
from .conftest import Calibrated

ROOT = Path(__file__).parents[2]
COMMANDS = ("calibrate", "evaluate", "inspect")


def test_alone_it_lists_all_commands_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for name in COMMANDS:
        assert re.search(rf"^ +{name}\s+\w+ \w+", captured.err, re.MULTILINE), captured.err


EXTRAS = {"transformers", "tokenizers", "sklearn", "matplotlib", "rich"}


def imported(importtime: str) -> set[str]:
    """The modules that `python -X importtime` tells."""
    return {line.rpartition("|")[2].strip() for line in importtime.splitlines()}


@pytest.mark.parametrize("asked", ["--help", "--version", *(f"{name} --help" for name in COMMANDS)])
def test_help_and_version_do_not_wait_for_torch(asked: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rdk_cuda", *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = imported(done.stderr)
    assert "rdk_cuda.cli.arguments" in modules
    assert not modules & {"torch", "numpy", "safetensors", *EXTRAS}
    assert ("rdk_cuda 0." if asked == "--version" else "usage: python -m rdk_cuda") in done.stdout


def test_control_a_command_in_a_process_of_its_own_has_what_it_needs_and_no_extra(
    tmp_path: Path,
) -> None:
    Affinity.intersection(Vocabulary([3, 1], 41)).save(tmp_path / "--help")
    command = [sys.executable, "-X", "importtime", "-m", "rdk_cuda", "inspect", "--", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=with_path())
    assert "target tokens (V_t)" in done.stdout, done.stderr
    assert "torch" in imported(done.stderr)
    assert not imported(done.stderr) & EXTRAS
    # A program of another name that imports rdk_cuda gets all of it, but what the extras install.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import rdk_cuda.__main__\nrdk_cuda.Affinity\n")
    (tmp_path / "other" / "__main__.py").write_text("print('ran')\n")
    command = [sys.executable, "-X", "importtime", "-m", "other", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=with_path())
    assert done.stdout == "ran\n", done.stderr
    assert "rdk_cuda.cli.arguments" in imported(done.stderr)
    assert not imported(done.stderr) & EXTRAS


def with_path() -> dict[str, str]:
    """The environment, from which this rdk_cuda is found in every folder."""
    return {**os.environ, "PYTHONPATH": str(Path(rdk_cuda.__file__).parents[1])}


# A model's directory may bring code along. No command runs it, whatever is typed.


def add_code(directory: Path, marker: Path) -> None:
    """Classes of the directory's own, for which Transformers asks whether to run its code."""
    code = f"open({str(marker)!r}, 'w').close()\nraise ImportError('ran')\n"
    (directory / "own.py").write_text(code)
    for name, classes in {
        "config.json": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", None]},
    }.items():
        file = directory / name
        if file.exists():
            settings = json.loads(file.read_text())
            changed = {"model_type": "own", "tokenizer_class": "Own", "auto_map": classes}
            file.write_text(json.dumps({**settings, **changed}))


@pytest.mark.parametrize(
    ("name", "spoiled"),
    [
        ("calibrate", "target"),
        ("calibrate", "drafter"),
        ("evaluate", "target"),
        ("evaluate", "saved/drafter"),
        ("inspect", "target"),
    ],
)
def test_no_command_runs_code_of_a_model(
    pair: Pair,
    calibrated: Calibrated,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    spoiled: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))
    shutil.copytree(calibrated.saved, tmp_path / "saved")
    Affinity.intersection(Vocabulary.most_likely(torch.ones(400), 9)).save(tmp_path / "affinity")
    add_code(tmp_path / spoiled, tmp_path / "marker")
    text = ["--text", *map(str, calibrated.text), "--output", str(tmp_path / "results")]
    answer = refusal(
        capsys,
        {
            "calibrate": command(pair, calibrated.text, tmp_path / "out"),
            "evaluate": ["evaluate", str(tmp_path / "saved"), "--target", str(pair[0]), *text],
            "inspect": ["inspect", str(tmp_path / "affinity"), "--tokenizer", str(pair[0])],
        }[name],
    )
    assert str(tmp_path / spoiled) in answer
    assert "code" in answer
    assert not (tmp_path / "marker").exists()


def trusting(source: str) -> Iterator[int]:
    """Lines of calls that load something of Transformers without `trust_remote_code=False`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "from_pretrained"
            and not any(
                keyword.arg == "trust_remote_code"
                and isinstance(keyword.value, ast.Constant)
                and keyword.value.value is False
                for keyword in node.keywords
            )
        ):
            yield node.lineno


def test_everything_that_is_loaded_is_loaded_without_code_of_its_own() -> None:
    files = [
        file
        for folder in ("profiling", "rdk_cuda")
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = [
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in trusting(file.read_text())
    ]
    assert not found
    assert sum(".from_pretrained(" in file.read_text() for file in files) >= 2
    # The control: every other way to call it is found.
    assert list(trusting("AutoModel.from_pretrained(x, trust_remote_code=False)")) == []
    for options in ("", ", trust_remote_code=True", ", trust_remote_code=asked"):
        assert list(trusting(f"AutoModel.from_pretrained(x{options})")) == [1]
