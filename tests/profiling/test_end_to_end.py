"""A step's parts are all of it, heads cost what their sizes say, and rows hang together."""

from __future__ import annotations

import json
import statistics
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

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def tiny_steps(accepted_length: float = 1.5) -> Steps:
    noises = {head: noise_for(accepted_length, 4) for head in HEADS}
    return Steps(make_pair("tiny", CPU, 1), context=16, draft_length=4, noises=noises)


def test_every_head_has_a_row_with_either_sampling_next_to_the_target_alone(
    tmp_path: Path,
) -> None:
    output = tmp_path / "rows.json"
    options = ("--device", "cpu", "--size", "tiny", "--context", "16", "--target-layers", "1")
    batches = ("--batch", "1", "2", "--rounds", "1")
    assert end_to_end.main([*options, *batches, "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    heads = ["target alone"] + [head.name for head in HEADS for _ in SAMPLINGS]
    assert [(row["batch"], row["head"]) for row in rows] == [
        (batch, head) for batch in (1, 2) for head in heads
    ]
    draft_length, lengths = end_to_end.accepted_lengths()
    assert draft_length == rows[0]["draft_length"] == 4
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1)
        per_second = (1 + row["accepted_length"]) * row["batch"] / row["step_seconds"]
        assert row["tokens_per_second"] == pytest.approx(per_second)
        alone = next(each for each in rows if each["batch"] == row["batch"])
        ratio = row["tokens_per_second"] / alone["tokens_per_second"]
        assert row["speed_up"] == pytest.approx(ratio)
    for row in (row for row in rows if row["method"]):
        assert sorted(row["parts"]) == sorted(PARTS)
        (head,) = (each for each in HEADS if each.name == row["head"])
        assert row["head_rows"] == head.rows(SHAPES["tiny"]["vocab_size"])
        assert row["accepted_length"] == lengths[head]


@pytest.mark.night
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
