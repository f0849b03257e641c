"""What the programs that measure rows share: files, pages, refusals, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from profiling.bench import __main__ as bench
from profiling.machine import ROOT
from profiling.peers import __main__ as compare
from profiling.results import Results
from tests import interruptible

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = {
    bench: ("--device", "cpu", "--preset", "tiny", "--operators", "draft", "--repeats", "3"),
    compare: ("--device", "cpu", "--preset", "tiny", "--peers", "eager", "--draws", "256"),
}
NAMES = {bench: "bench", compare: "compare"}
PROGRAMS = pytest.mark.parametrize("program", list(TINY), ids=list(NAMES.values()))


@PROGRAMS
def test_a_second_run_appends_its_rows_and_its_page(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new folder" / "rows.json"
    assert program.main([*TINY[program], "--output", str(output)]) == 0
    content = json.loads(output.read_text())
    assert (content["format"], content["format_version"]) == (f"rdk_cuda.{NAMES[program]}", 1)
    first, page = content["rows"], output.with_suffix(".md").read_text()
    assert capsys.readouterr().out == page == f"{program.page(first)}\n"
    assert all(set(row) == set(first[0]) for row in first)
    assert first[0]["command"] == " ".join([program.parser().prog, *TINY[program]])

    again = Results(output, NAMES[program])
    again.append({**first[0], "run": "another"})
    assert json.loads(output.read_text())["rows"] == [*first, *again.new_rows]


def refusal(program: Any, options: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert program.main(options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program.parser().prog}: ")
    return str(line)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mine", "is no result file"),
        ('{"format": "examples.demo"}', "is no result file of bench"),
        ('{"format": "rdk_cuda.bench", "format_version": 2}', "has format version 2; needs 1"),
        ('{"format": "rdk_cuda.bench", "format_version": 1, "rows": 1}', "has no list of rows"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "rows.json"
    file.write_text(content)
    assert message in refusal(bench, [*TINY[bench], "--output", str(file)], capsys)
    assert file.read_text() == content
    below = [*TINY[bench], "--output", str(file / "below.json")]
    assert "needs a file to write to" in refusal(bench, below, capsys)


LONG = ("--preset", "tiny", "--repeats", "1000000", "--seconds", "0.5", "--threads", "1")


@pytest.mark.night
@pytest.mark.parametrize(
    ("module", "options", "reached", "finished"),
    [
        ("profiling.bench", LONG, "[3/", 2),
        ("profiling.peers", (*LONG, "--peers", "eager"), "timing draft+verify pruned", 2),
    ],
)
def test_ctrl_c_keeps_the_finished_rows(
    module: str, options: tuple[str, ...], reached: str, finished: int, tmp_path: Path
) -> None:
    output = tmp_path / "rows.json"
    command = [sys.executable, "-m", module, "--device", "cpu", *options]
    process = interruptible.start([*command, "--output", str(output)], ROOT)
    printed = ""
    while reached not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == f"Interrupted: {finished} rows kept in {output}."
    assert "Traceback" not in errors
    assert len(json.loads(output.read_text())["rows"]) == finished
    assert out == output.with_suffix(".md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.md"]
