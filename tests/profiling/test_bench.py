"""The command: rows that parse, refusals of one sentence, Ctrl-C that keeps what is there."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from profiling.bench import __main__ as bench
from profiling.bench import measure
from profiling.bench.cases import Case
from profiling.results import NEEDED
from tests import interruptible
from tests.profiling import refusals

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--device", "cpu", "--preset", "tiny", "--repeats", "3")


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Everything here is tiny."""


def rows_of(path: Path) -> list[dict]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["format"], content["format_version"]) == ("rdk_cuda.bench", 1)
    rows: list[dict] = content["rows"]
    return rows


def test_rows_have_every_field_and_figures_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new folder" / "rows.json"
    assert bench.main([*TINY, "--output", str(output)]) == 0
    rows = rows_of(output)
    operators = [row["operator"] for row in rows]
    assert operators == ["draft"] + 2 * ["verify"] + 2 * ["draft+verify"] + [
        "redistribute",
        "gather_logits",
    ]
    for row in rows:
        assert set(NEEDED) < set(row) == set(rows[0])
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert row["rounds"] == 3
        floor = row["bytes"] / row["bandwidth_gb_s"] / 1e3
        assert row["floor_us"] == pytest.approx(floor)
        assert row["bytes_visited"] <= row["bytes_all"]
        assert row["device"] == "cpu"
        assert row["threads"] == 1
        assert row["torch"] == torch.__version__
        assert row["peers"]["eager"]["ratio"] > 0
        assert "--peers compiled" in row["peers"]["compiled"]["skipped"]
    assert {row["bandwidth"] for row in rows if row["operator"] != "redistribute"} == {"read"}
    low, high = (row for row in rows if row["operator"] == "verify")
    assert low["accepted_mean"] < high["accepted_mean"]
    assert low["bytes_visited"] < high["bytes_visited"]

    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 + len(rows)
    table = captured.out.splitlines()[-len(rows) :]
    assert [line.split()[1] for line in table] == operators


def test_a_second_run_appends_and_shows_its_own_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows.json"
    for operator in ("draft", "gather_logits"):
        capsys.readouterr()
        assert bench.main([*TINY, "--operators", operator, "--output", str(output)]) == 0
    assert [row["operator"] for row in rows_of(output)] == ["draft", "gather_logits"]
    assert "\n| draft " not in capsys.readouterr().out


def test_the_command_of_a_row_repeats_it_and_names_no_paths(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    bench.main([*TINY, "--operators", "draft", "--peers", "--output", str(output)])
    (row,) = rows_of(output)
    options = "--device cpu --preset tiny --operators draft --peers --repeats 3"
    assert row["command"] == f"python -m profiling.bench {options}"
    assert set(row["peers"]) == {"compiled"}


def test_growth_is_fitted_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.json"
    chosen = ("--operators", "draft", "verify", "--growth", "--seconds", "0.001")
    assert bench.main([*TINY, *chosen, "--output", str(output)]) == 0
    fits = json.loads(output.read_text())["growth"]
    sizes, affinity = ("target_size", "draft_size", "batch"), ("entries", "rank")
    drafts = [("draft", axis) for axis in (*sizes, *affinity)]
    verifies = [("verify", axis) for axis in (*sizes, "draft_length", *affinity)]
    assert [(fit["operator"], fit["axis"]) for fit in fits] == drafts + verifies
    assert "Growth: time ~ size ^ exponent" in capsys.readouterr().out
    assert (tmp_path / "rows.png").is_file() == (find_spec("matplotlib") is not None)


def test_a_compiler_that_fails_is_a_reason_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(function: object, **_: object) -> object:
        def call(*_: object) -> None:
            raise RuntimeError("no working C++ compiler\nfound anywhere")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    output = tmp_path / "rows.json"
    chosen = ("--operators", "draft", "--peers", "eager", "compiled")
    assert bench.main([*TINY, *chosen, "--output", str(output)]) == 0
    (row,) = rows_of(output)
    assert row["peers"]["compiled"] == {"skipped": "RuntimeError: no working C++ compiler"}
    assert row["peers"]["eager"]["ratio"] > 0


def test_a_case_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = measure.build

    def sometimes(case: Case, device: torch.device) -> object:
        if case.operator == "verify":
            raise RuntimeError("rdk::verify: no such thing\nas a second line")
        if case.operator == "redistribute":
            raise torch.OutOfMemoryError("at all")
        return build(case, device)

    monkeypatch.setattr(measure, "build", sometimes)
    output = tmp_path / "rows.json"
    chosen = ("--operators", "verify", "redistribute", "gather_logits")
    assert bench.main([*TINY, *chosen, "--output", str(output)]) == 1
    assert [row["operator"] for row in rows_of(output)] == ["gather_logits"]
    errors = capsys.readouterr().err
    assert "low: RuntimeError: rdk::verify: no such thing\n" in errors
    assert "left out, out of memory: redistribute virtual" in errors


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    return refusals.refusal(bench.main, "python -m profiling.bench", capsys, argv)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "tpu"), "invalid choice: 'tpu'"),
        ((), "required: --device"),
        ((*TINY, "--operators", "sample"), "invalid choice: 'sample'"),
        ((*TINY, "--dtype", "float64"), "invalid choice: 'float64'"),
        ((*TINY, "--repeats", "0"), "--repeats: got '0'; needs a whole number, at least 1"),
        ((*TINY, "--seconds", "never"), "--seconds: got 'never'; needs a number above 0"),
        ((*TINY, "--threads", "0"), "--threads: got '0'"),
        ((*TINY, "--dtype", "bfloat16"), "--preset tiny has no case of --operators"),
    ],
)
def test_options_that_cannot_work_are_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, *options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mine", "is no result file"),
        ('{"format": "examples.demo"}', "is no result file of bench"),
        ('{"format": "rdk_cuda.bench", "format_version": 2}', "has format version 2; needs 1"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "rows.json"
    file.write_text(content)
    assert message in refusal(capsys, *TINY, "--output", file)
    assert file.read_text() == content
    assert "needs a file to write to" in refusal(capsys, *TINY, "--output", file / "below.json")


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_rows(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    long = ("--device", "cpu", "--preset", "tiny", "--repeats", "1000000", "--seconds", "0.5")
    process = interruptible.start(
        [sys.executable, "-m", "profiling.bench", *long, "--threads", "1", "--output", str(output)],
        ROOT,
    )
    assert process.stderr is not None
    printed = ""
    while "[3/" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    rows = rows_of(output)
    assert errors.splitlines()[-1] == f"Interrupted: {len(rows)} rows kept in {output}."
    assert "Traceback" not in errors
    assert len(rows) == 2
    assert len(out.splitlines()[-2:]) == 2
    assert out.splitlines()[-1].startswith("| verify")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json"]
