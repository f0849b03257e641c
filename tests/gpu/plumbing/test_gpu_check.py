"""The commands for a machine with a GPU are right where there is none."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as gpu
from tests.gpu.parts import COMMANDS, OWN, ROOT, Part

PYTHON = sys.executable


@pytest.mark.parametrize("command", COMMANDS)
def test_the_parts_of_a_command_take_at_most_540_s_together(command: str) -> None:
    always = [part for part in COMMANDS[command] if not part.name.endswith("*")]
    assert sum(part.limit for part in always) <= 540
    assert all(part.limit <= 540 for part in COMMANDS[command])


def test_every_file_that_a_part_names_is_there_and_every_gpu_test_belongs_to_one() -> None:
    words = " ".join(part.command for part in COMMANDS["check"]).split()
    named = [word for word in words if re.match(r"(tests|profiling)/", word)]
    assert all((ROOT / word).exists() for word in named)
    assert "tests/gpu" in named


def test_a_part_of_its_own_is_not_run_by_the_part_of_all_others() -> None:
    parts = {part.name.rstrip("*"): part.command for part in COMMANDS["check"]}
    for name, paths in OWN.items():
        for path in paths.split():
            assert path in parts[name]
            assert f"--ignore={path}" in parts["tests"].split()


def test_only_the_tool_that_has_an_option_is_given_it() -> None:
    given = {part.name for part in COMMANDS["sanitize"] if "--report-api-errors" in part.command}
    assert given == {"planted-memcheck", "memcheck"}


@pytest.mark.parametrize(
    ("part", "result"),
    [
        (Part("good", 60, f"{PYTHON} -c print(3)"), "passed"),
        (Part("bad", 60, f"{PYTHON} -c print(4);exit(3)"), "failed with status 3: ['4']"),
        (Part("slow", 1, "sleep 60"), "failed: not done within 1 s"),
        (Part("found", 60, f"{PYTHON} -c print(5);exit(86)", says="5"), "passed"),
        (Part("missed", 60, f"{PYTHON} -c print(6)", says="5"), "failed with status 0: ['6']"),
        (Part("lacking", 60, "nothing", "no-such-tool"), "skipped: no-such-tool is not installed"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_part_ends_in_time_and_says_how(
    part: Part, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "OUT", tmp_path)
    assert gpu.run(part, dict(os.environ)) == result


def test_without_a_gpu_the_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "sanitize"])
    assert gpu.main() == 2
    assert "no GPU" in capsys.readouterr().out
