"""A training changes the parts that it is told, keeps the best, and goes on to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.calibration import Options
from rdk_cuda.decoding.models import Reading
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.stages.pruning import RECOMMENDED, Pruning
from rdk_cuda.recipes.stages.train.parts import TrainedRows, parts_of
from rdk_cuda.training import (
    ALL,
    HEAD,
    STEPS_A_ROUND,
    VIRTUAL_ROWS,
    Distillation,
    DistillationError,
    Recipe,
)
from tests.bounded_memory import disk_for
from tests.calibration.markov_pair import MarkovPair, V, material, windows
from tests.proof.statistics.chi_square import assert_caught, assert_fits, histogram

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = MarkovPair.random()
PROMPT, LENGTH, BATCH = 3, 12, 4
RECIPE = Recipe(steps=30, batch=BATCH, learning_rate=0.02, prompt=PROMPT)


@cache
def drafter() -> PrunedDrafter:
    """With virtual and dynamic tokens."""
    pruning = Pruning(material(PAIR), PAIR.likeliest(), Options(virtual=4, dynamic=8, recent=4))
    found = pruning.method(RECOMMENDED, 1.0).drafter
    assert found.affinity.draft_size > found.vocabulary.draft_size
    return found


def texts(turn: int, count: int = STEPS_A_ROUND * BATCH) -> Sequence[Window]:
    return windows(PAIR.documents(count, LENGTH, seed=100 + turn))


def training(parts: TrainedRows, checkpoint: Path | None = None, **recipe: Any) -> Distillation:
    given = replace(RECIPE, **recipe)
    return Distillation(PAIR.read, parts, texts, texts(-1), texts(-2), given, checkpoint=checkpoint)


@pytest.mark.parametrize("train", [HEAD, VIRTUAL_ROWS, ALL])
def test_untrained_parts_say_what_the_drafter_says(train: str) -> None:
    found = drafter()
    hidden, contexts = PAIR.hidden[:9], [[place, place + 1, place] for place in range(9)]
    expected = found.columns(PAIR.full_head, hidden, contexts)
    parts = parts_of(train, found, PAIR.full_head)
    got = parts.columns(hidden, contexts)._asdict()
    assert got.keys() == expected.keys()
    assert torch.equal(got.pop("dynamic_tokens"), expected.pop("dynamic_tokens"))
    used = found.dynamic_tokens(contexts) >= 0  # type: ignore[misc]
    got["dynamic_logits"], expected["dynamic_logits"] = (
        each["dynamic_logits"][used] for each in (got, expected)
    )
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-5)
    beyond = torch.full((9, 2), V, dtype=torch.int32)  # no token: a column that is not read
    assert parts(hidden, beyond).shape == (9, 2)
    again = parts.trained()
    torch.testing.assert_close(again.weight, found.weight, rtol=1e-6, atol=1e-6)
    assert again.affinity is found.affinity


@pytest.mark.parametrize(
    ("train", "loss", "least"),
    [
        (HEAD, "tv", 0.01),
        (HEAD, "forward-kl", 0.01),
        (VIRTUAL_ROWS, "tv", 0.0),
        (HEAD, "lk", 0.01),
    ],
)
def test_more_is_accepted_and_what_is_not_trained_stays(
    train: str, loss: str, least: float
) -> None:
    found = drafter()
    run = training(parts_of(train, found, PAIR.full_head), loss=loss)
    trained = run.run()
    assert float((run.acceptance(texts(-2)) - run.before).mean()) > least
    kept = found.vocabulary.draft_size
    assert torch.equal(trained.weight[:kept], found.weight[:kept]) == (train != HEAD)
    assert not torch.equal(trained.weight[kept:], found.weight[kept:])


def first_tokens(drafts: PrunedDrafter, judged_as: PrunedDrafter, count: int = 100_000) -> Tensor:
    """How often a step of one draft begins with each token."""
    last = 7
    columns, judged = (
        {
            name: rows.expand(count, -1)
            for name, rows in each.columns(PAIR.full_head, PAIR.hidden[[last]], [[last]]).items()
        }
        for each in (drafts, judged_as)
    )
    draft = rdk_cuda.draft(
        columns.pop("draft_logits"),
        drafts.affinity,
        seeds=torch.arange(count),
        positions=3,
        **columns,
    )
    draft = replace(draft, logits=judged["draft_logits"][:, None], stats=None)
    target = PAIR.target_logits[last].expand(count, 2, -1)
    return histogram(rdk_cuda.verify(target, draft, drafts.affinity).tokens[:, 0], V)


def test_what_a_trained_drafter_begins_has_the_target_s_distribution() -> None:
    parts = parts_of(HEAD, drafter(), PAIR.full_head)
    trained, probs = training(parts).run(), PAIR.target_logits[7].softmax(-1)
    assert_fits(first_tokens(trained, trained), probs)
    assert_caught(first_tokens(trained, drafter()), probs)


def test_an_interrupted_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    def parts() -> TrainedRows:
        return parts_of(HEAD, drafter(), PAIR.full_head)

    whole = training(parts()).run()
    checkpoint = tmp_path / "training.tmp"

    def interrupt(step: int, now: float) -> None:
        if step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training(parts(), checkpoint).run(report=interrupt)
    going_on = training(parts(), checkpoint)
    assert going_on.step == 20
    assert torch.equal(going_on.run().weight, whole.weight)
    with pytest.raises(DistillationError, match="is of another training"):
        training(parts(), checkpoint, learning_rate=0.01)
    whole = torch.load(checkpoint, weights_only=True)
    for missing in whole:
        torch.save({name: each for name, each in whole.items() if name != missing}, checkpoint)
        with pytest.raises(DistillationError, match=rf"{checkpoint} .*a whole one .*'{missing}'"):
            training(parts(), checkpoint)
    torch.save({**whole, "best": [torch.zeros(())] * len(whole["best"])}, checkpoint)
    with pytest.raises(DistillationError, match="or not a whole one"):
        training(parts(), checkpoint)
    checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(DistillationError, match="is no checkpoint of this program"):
        training(parts(), checkpoint)


def test_a_full_disk_is_an_error_that_names_the_checkpoint_and_the_last_one_stays(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "training.tmp"
    run = training(parts_of(HEAD, drafter(), PAIR.full_head), checkpoint)
    run.run()
    last = checkpoint.read_bytes()
    run.step = 0
    for room in (8, 600, len(last) - 8):
        with disk_for(room), pytest.raises(OSError, match=f"File too large: '{checkpoint}'"):
            run.run()
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [last]


def test_the_best_drafter_is_kept_and_training_ends_when_nothing_gets_better() -> None:
    """Steps this large break a drafter at once."""
    found = drafter()
    run = training(
        parts_of(HEAD, found, PAIR.full_head),
        learning_rate=50.0,
        steps=200,
        patience=2,
    )
    assert torch.equal(run.run().weight, found.weight)
    assert run.step == 2 * STEPS_A_ROUND
    assert torch.equal(run.acceptance(texts(-2)), run.before)


def test_what_a_drafter_below_its_head_says_gets_a_gradient() -> None:
    table = torch.nn.Parameter(PAIR.hidden.clone())

    def read(ids: torch.Tensor) -> Reading:
        return Reading(PAIR.target_logits[ids], table[ids])

    parts = parts_of(ALL, drafter(), PAIR.full_head)
    run = Distillation(read, parts, texts, texts(-1), texts(-2), RECIPE, body=[table])
    run.run()
    assert not torch.equal(table, PAIR.hidden)
    assert float((run.acceptance(texts(-2)) - run.before).mean()) > 0.01


def test_parts_that_a_drafter_lacks_are_refused() -> None:
    found = drafter()
    plain = PrunedDrafter.plain(PAIR.full_head, found.vocabulary)
    with pytest.raises(ValueError, match="no virtual tokens"):
        parts_of(VIRTUAL_ROWS, plain, PAIR.full_head)
