"""The commands for a machine with a GPU are right where there is none."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as gpu


@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_the_parts_of_a_command_take_at_most_540_s_together_and_name_files_that_exist(
    command: str,
) -> None:
    parts = gpu.COMMANDS[command].values()
    assert sum(limit for limit, _ in parts) <= 540
    words = " ".join(command for _, command in parts).replace("--ignore=", "").split()
    named = [word for word in words if re.match(r"(tests|profiling)/", word)]
    assert named or command == "sanitize"
    assert [name for name in named if not (gpu.ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("limit", "command", "result"),
    [
        (60, "-c print(3)", "passed"),
        (60, "-c print(4);exit(3)", "failed with status 3: ['4']"),
        (1, "-c while(1):0", "failed with status 124: []"),
        (60, "-c print(\\'Invalid\\');exit(0) --planted memcheck", "failed with status 0: ['Inv"),
        (60, "-c print(\\'Invalid\\'+chr(32)+\\'__\\');exit(86) --planted memcheck", "passed"),
    ],
)
def test_a_part_ends_in_time_and_says_how(
    limit: int, command: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "OUT", tmp_path)
    assert gpu.run("part", limit, f"{sys.executable} {command}", dict(os.environ)).startswith(
        result
    )


def test_without_a_gpu_the_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "sanitize"])
    assert gpu.main() == 2
    assert "no GPU" in capsys.readouterr().out
