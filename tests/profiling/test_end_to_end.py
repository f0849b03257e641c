"""A step's parts are all of it, heads cost what their sizes say, and rows hang together."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from profiling.studies.end_to_end import __main__ as end_to_end
from profiling.studies.end_to_end.decoding_steps import (
    PARTS,
    SAMPLINGS,
    VARIANTS,
    Steps,
    noise_for,
)
from profiling.studies.end_to_end.model_pairs import HEADS, SHAPES, _random_llama, make_pair
from profiling.studies.end_to_end.page import page
from tests import interruptible

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
TINY = ("--device", "cpu", "--size", "tiny", "--context", "16", "--target-layers", "1")


def rows_of(path: Path) -> list[dict]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["format"], content["format_version"]) == ("rdk_cuda.end_to_end", 1)
    rows: list[dict] = content["rows"]
    return rows


def tiny_steps(accepted_length: float = 1.5) -> Steps:
    noises = {head: noise_for(accepted_length, 4) for head in HEADS}
    return Steps(make_pair("tiny", CPU, 1), context=16, draft_length=4, noises=noises)


def test_every_head_has_a_row_with_either_sampling_beside_the_target_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new folder" / "rows.json"
    assert (
        end_to_end.main([*TINY, "--batch", "1", "2", "--rounds", "2", "--output", str(output)]) == 0
    )
    rows = rows_of(output)
    heads = ["target alone"] + [head.name for head in HEADS for _ in SAMPLINGS]
    assert [(row["batch"], row["head"]) for row in rows] == [
        (batch, head) for batch in (1, 2) for head in heads
    ]
    lengths = end_to_end.accepted_lengths()[1]
    for row in rows:
        assert set(row) == set(rows[0])
        assert sum(row["shares"].values()) == pytest.approx(1)
        per_second = (1 + row["accepted_length"]) * row["batch"] / row["step_seconds"]
        assert row["tokens_per_second"] == pytest.approx(per_second)
        alone = next(each for each in rows if each["batch"] == row["batch"])
        ratio = row["tokens_per_second"] / alone["tokens_per_second"]
        assert row["speed_up"] == pytest.approx(ratio)
    for row in (row for row in rows if row["method"]):
        assert tuple(sorted(row["parts"])) == tuple(sorted(PARTS))
        (head,) = (each for each in HEADS if each.name == row["head"])
        assert row["head_rows"] == head.rows(SHAPES["tiny"]["vocab_size"])
        assert row["accepted_length"] == lengths[head]
    printed = capsys.readouterr()
    assert printed.out == output.with_suffix(".md").read_text(encoding="utf-8") == page(rows)
    typed = "--device cpu --size tiny --target-layers 1 --batch 1 2 --context 16 --rounds 2"
    assert rows[0]["command"] == f"python -m profiling.studies.end_to_end {typed}"


def test_accepted_lengths_are_those_of_the_committed_calibration() -> None:
    draft_length, lengths = end_to_end.accepted_lengths()
    assert draft_length == 4
    assert set(lengths) == set(HEADS)
    full, pruned, virtual, *_ = (lengths[head] for head in HEADS)
    assert 4 > full > virtual > pruned > 0


@pytest.mark.slow
def test_as_many_drafts_are_accepted_as_was_asked_for_whoever_samples() -> None:
    for accepted_length in (0.5, 1.5, 3.0):
        steps = tiny_steps(accepted_length)
        steps.begin(8)
        for variant in VARIANTS[2:]:
            mean = statistics.fmean(steps.take(variant)[1] for _ in range(12))
            # Of 96 sequences, whose accepted drafts deviate by at most 2; and the rate is that of
            # noise around q, about what the normal distribution says.
            assert abs(mean - accepted_length) < 0.9, variant


def test_a_step_leaves_the_caches_as_they_were_and_its_parts_fill_its_time() -> None:
    steps = tiny_steps()
    steps.begin(3)
    for variant in VARIANTS:
        began = time.perf_counter()
        seconds, _ = steps.take(variant)
        passed = time.perf_counter() - began
        assert set(seconds) == set(PARTS)
        assert min(seconds.values()) > 0
        assert sum(seconds.values()) < passed
        for model in (steps.target, *steps.drafters.values()):
            assert model.lengths == [16] * 3
    assert set(steps.take_alone()) == {"target", "verify", "cache"}


def test_serving_models_have_the_layers_of_llama_3_1_8b() -> None:
    model = _random_llama("serving", 1, torch.device("meta"), torch.bfloat16, vocab_size=8)
    weights = sum(each.numel() for each in model.parameters())
    # Attention 41.9 M, feed-forward 176.2 M, two norms; then embedding and last norm.
    assert weights == 218_112_000 + (8 + 1) * 4096


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_batches(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    process = interruptible.start(
        [sys.executable, "-m", "profiling.studies.end_to_end", *TINY, "--batch", "1", "64",
         "--rounds", "2", "--threads", "1", "--output", str(output)], ROOT
    )  # fmt: skip
    assert process.stderr is not None
    printed = ""
    while "batch 64: round 0" not in printed:
        line = process.stderr.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    rows = rows_of(output)
    assert errors.splitlines()[-1] == f"Interrupted: {len(rows)} rows kept in {output}."
    assert "Traceback" not in errors
    assert {row["batch"] for row in rows} == {1}
    assert output.with_suffix(".md").read_text(encoding="utf-8") == page(rows)
