"""The command: every peer has a row, wrong ones are marked, and Ctrl-C keeps what is there."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from profiling.peers import __main__ as compare
from profiling.peers import installed as installed_peers
from profiling.peers.losslessness import FALSE_ALARM
from profiling.peers.page import page
from profiling.peers.samplers import OURS, Peer, full_width, scattered
from rdk_cuda import Affinity
from tests import interruptible
from tests.profiling.test_peers import without_residual

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--device", "cpu", "--preset", "tiny", "--repeats", "3", "--draws", "4096")


def rows_of(path: Path) -> list[dict]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["format"], content["format_version"]) == ("rdk_cuda.compare", 1)
    rows: list[dict] = content["rows"]
    return rows


def test_every_peer_has_a_row_with_every_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new folder" / "rows.json"
    chosen = ("--peers", "eager", "scatter-logits", "vllm")
    assert compare.main([*TINY, *chosen, "--output", str(output)]) == 0
    rows = rows_of(output)
    assert [(row["sampler"], row["peer"]) for row in rows] == [
        (sampler, peer) for sampler in ("virtual", "pruned") for peer in (OURS, *chosen[1:])
    ]
    for row in rows:
        assert set(row) == set(rows[0])
        assert row["device"] == "cpu"
        assert row["false_alarm"] == FALSE_ALARM
    missing = {(row["sampler"], row["peer"]): row for row in rows if row["status"] == "missing"}
    assert set(missing) == {
        ("virtual", "scatter-logits"),
        ("virtual", "vllm"),
        ("pruned", "vllm"),
    }
    assert missing["pruned", "vllm"]["reason"] == "needs a GPU"
    for row in (row for row in rows if row["status"] != "missing"):
        assert row["status"] == "right", row
        assert set(row["check"]) == {"low", "high", "size"}
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert row["ratio"] == 1 if row["peer"] == OURS else row["ratio"] > 0
        assert (row["warm_us"] is None) == (row["peer"] != OURS)
        assert row["accepted_mean"] == row["check"]["size"]["accepted_mean"]
        assert row["kept_bytes"] < 500 if row["peer"] == OURS else row["kept_bytes"] > 1200
        assert row["peak_bytes"] > 0
    printed = capsys.readouterr()
    assert printed.out == output.with_suffix(".md").read_text(encoding="utf-8") == page(rows)
    assert "Missing: scatter-logits (a virtual token has" in printed.out
    assert "vllm (needs a GPU)." in printed.out
    assert "[2/2] draft+verify pruned" in printed.err


def test_a_wrong_peer_is_marked_however_fast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(affinity: Affinity):  # type: ignore[no-untyped-def]
        return full_width(scattered(affinity), without_residual)

    planted = {**installed_peers.known_peers(), "planted": Peer("planted", "no residual", make)}
    monkeypatch.setattr(compare, "known_peers", lambda: planted)
    output = tmp_path / "rows.json"
    assert compare.main([*TINY, "--peers", "planted", "--output", str(output)]) == 0
    for row in rows_of(output):
        assert row["status"] == ("WRONG" if row["peer"] == "planted" else "right")
    printed = capsys.readouterr().out
    assert printed.count("| planted | WRONG |") == 2
    assert printed.count("WRONG: planted: token 1 of a step is not the target's") == 2


def test_a_peer_that_raises_is_missing_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(affinity: Affinity):  # type: ignore[no-untyped-def]
        raise ImportError("libcuda.so.1 is not there\nat all")

    planted = {**installed_peers.known_peers(), "planted": Peer("planted", "nothing", broken)}
    monkeypatch.setattr(compare, "known_peers", lambda: planted)
    output = tmp_path / "rows.json"
    assert compare.main([*TINY, "--peers", "planted", "eager", "--output", str(output)]) == 0
    rows = [row for row in rows_of(output) if row["peer"] == "planted"]
    assert {row["reason"] for row in rows} == {"raises ImportError: libcuda.so.1 is not there"}
    assert {row["median_us"] for row in rows} == {None}


def test_a_case_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = installed_peers.known_peers()

    def sometimes(affinity: Affinity):  # type: ignore[no-untyped-def]
        if affinity.nnz == 300:  # the virtual one: every target token has an entry
            raise RuntimeError("rdk::draft: no such thing\nas a second line")
        return peers[OURS].make(affinity)

    planted = {**peers, OURS: replace(peers[OURS], make=sometimes)}
    monkeypatch.setattr(compare, "known_peers", lambda: planted)
    output = tmp_path / "rows.json"
    assert compare.main([*TINY, "--peers", "eager", "--output", str(output)]) == 1
    assert {row["sampler"] for row in rows_of(output)} == {"pruned"}
    errors = capsys.readouterr().err
    assert "failed: draft+verify virtual" in errors
    assert "our own operators: raises RuntimeError: rdk::draft: no such thing\n" in errors


def test_a_second_run_appends_and_both_have_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "rows.json"
    for run in ("2001-01-01T00:00:00Z", "2002-01-01T00:00:00Z"):
        monkeypatch.setattr(compare, "now", lambda run=run: run)
        assert compare.main([*TINY, "--peers", "eager", "--output", str(output)]) == 0
    rows, text = rows_of(output), output.with_suffix(".md").read_text(encoding="utf-8")
    assert len(rows) == 8
    assert text.count("## virtual") == 2
    options = "--device cpu --preset tiny --peers eager --draws 4096 --repeats 3"
    assert rows[0]["command"] == f"python -m profiling.peers {options}"
    assert text.count(options) == 2


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_rows(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    long = (*TINY[:4], "--repeats", "1000000", "--seconds", "0.5", "--peers", "eager")
    process = interruptible.start(
        [sys.executable, "-m", "profiling.peers", *long, "--threads", "1", "--output",
         str(output)], ROOT
    )  # fmt: skip
    assert process.stderr is not None
    printed = ""
    while "timing draft+verify pruned" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    rows = rows_of(output)
    assert errors.splitlines()[-1] == f"Interrupted: {len(rows)} rows kept in {output}."
    assert "Traceback" not in errors
    assert [row["sampler"] for row in rows] == ["virtual", "virtual"]
    assert out.endswith(output.with_suffix(".md").read_text(encoding="utf-8"))
    names = ["rows.json", "rows.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
