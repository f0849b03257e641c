"""`distill` writes a better drafter, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda import Affinity
from rdk_cuda.__main__ import main
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.evaluation import Interval
from rdk_cuda.integrations.huggingface.saved_drafter import (
    load_drafter,
)
from rdk_cuda.recipes import distill
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import Document, Text
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.request import Training
from rdk_cuda.recipes.stages.stage import State
from rdk_cuda.vocabulary import Vocabulary

from ..tiny_models import VOCABULARY
from .calibrating import Pair, digests, write_texts
from .conftest import Desk

SMALL = ("--steps", "20", "--batch", "2", "--prompt", "8", "--tokens", "24")


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "HELD_OUT_TEXTS", 16)


def command(pair: Pair, drafter: Path, folder: Path, *options: object) -> list[str]:
    """What follows `python -m rdk_cuda`."""
    folder.mkdir(exist_ok=True)
    files = write_texts(folder / "text", count=21)
    said = ("--target", pair[0], "--text", *files[:5], "--held-out", *files[5:])
    return ["distill", *map(str, (drafter, *said, "--out", folder / "out", *SMALL, *options))]


@pytest.mark.ci
@pytest.mark.parametrize("train", ["virtual-rows", "all"])
def test_it_writes_a_calibrated_directory_that_more_is_accepted_of(desk: Desk, train: str) -> None:
    options = ("--train", train, "--loss", "tv", "lk", "--learning-rate", "0.01")
    before = digests(desk.calibrated.saved)
    assert main(command(desk.pair, desk.calibrated.saved, desk.folder, *options)) == 0
    assert digests(desk.calibrated.saved) == before
    model, drafter, settings = load_drafter(desk.out)
    came_model, came, calibration = load_drafter(desk.calibrated.saved)
    (said,) = settings.pop("distilled")
    assert settings == calibration
    assert said["train"] == train
    assert said["loss"] in ("tv", "lk")
    assert 0 < said["gain_low"] <= said["gain"] <= said["gain_high"]
    kept = came.vocabulary.draft_size
    assert torch.equal(drafter.weight[:kept], came.weight[:kept]) == (train == "virtual-rows")
    assert not torch.equal(drafter.weight[kept:], came.weight[kept:])
    same = [
        torch.equal(now, then)
        for now, then in zip(model.parameters(), came_model.parameters(), strict=True)
    ]
    assert all(same) == (train == "virtual-rows")
    assert torch.equal(model.get_output_embeddings().weight, came_model.lm_head.weight)
    printed = desk.capsys.readouterr().out
    assert printed.count("of the drafts were accepted, now") == 2
    assert not list(desk.folder.glob("*.tmp"))


def test_a_drafter_that_is_not_better_is_not_written(desk: Desk) -> None:
    options = ("--learning-rate", "100", "--data", "text")
    assert main(command(desk.pair, desk.calibrated.saved, desk.folder, *options)) == 1
    assert "not above 0: nothing was written" in desk.capsys.readouterr().out
    assert not desk.out.exists()
    assert not list(desk.folder.glob("*.tmp"))


@pytest.mark.parametrize(
    "options",
    [
        ("0.01", "--data", "drafter"),
        pytest.param(("0.01", "--train", "all", "--loss", "lk", "tv"), marks=pytest.mark.ci),
    ],
)
def test_an_interrupted_run_writes_the_same_files_later(
    desk: Desk, options: tuple[str, ...]
) -> None:
    """With several losses in the last training."""
    whole, halves = desk.folder / "whole", desk.folder / "halves"
    options = ("--learning-rate", *options)
    assert main(command(desk.pair, desk.calibrated.saved, whole, *options)) == 0

    class Interrupting(distill.Distillation):
        def run(self, each: Any, report: Any = None) -> PrunedDrafter:
            def stop(step: int, rates: torch.Tensor) -> None:
                if self.recipe.loss == "tv":
                    raise KeyboardInterrupt

            return super().run(each, stop)

    with desk.patch.context() as patch:
        patch.setattr(distill, "Distillation", Interrupting)
        assert main(command(desk.pair, desk.calibrated.saved, halves, *options)) == 130
    assert "The same command goes on from" in desk.capsys.readouterr().err
    others = command(desk.pair, desk.calibrated.saved, halves, *options)
    others[others.index("--out") - 1] = str(write_texts(halves / "more", count=22)[21])
    assert main(others) == 2  # what it is measured on has changed
    assert "is of another training" in desk.capsys.readouterr().err
    assert main(command(desk.pair, desk.calibrated.saved, halves, *options)) == 0
    assert digests(whole / "out") == digests(halves / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "all", "--dtype", "bfloat16"), "needs float32 with --train all"),
        (("--prompt", "480"), "needs one of 480, a window"),
        (("--prompt", "400", "--tokens", "200"), "600 tokens long, and the models can read 512"),
        (("--train", "body"), "--train body: needs one of head, virtual-rows, all"),
        (("--loss", "tv", "kl"), "--loss kl: needs one of tv, log-alpha, lk, forward-kl"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(
    desk: Desk, options: tuple[str, ...], message: str
) -> None:
    assert main(command(desk.pair, desk.calibrated.saved, desk.folder, *options)) == 2
    assert message in desk.capsys.readouterr().err
    assert not desk.out.exists()


def test_too_few_held_out_documents_are_refused(desk: Desk) -> None:
    line = command(desk.pair, desk.calibrated.saved, desk.folder)
    place = line.index("--held-out")
    assert main([*line[: place + 2], *line[line.index("--out") :]]) == 2
    assert "1 document is held out; needs 4" in desk.capsys.readouterr().err


def begun(
    tiny: ModelPair, *held_out: Document, out: Path = Path("out"), seed: int = 0
) -> tuple[distill.Train, State[Training]]:
    """A stage that writes texts of eight tokens and two more."""
    paths = Path("target"), Path("calibrated"), (), out
    request = Training(*paths, prompt=8, tokens=2, seed=seed, data="text", batch=2)
    drafter: Any = None  # no text depends on it
    texts = Text([], 1, None), Text(held_out, 1, None)
    stage = distill.Train(drafter, {"temperature": 1.0})
    return stage, State(request, tiny, *texts, Stages())


def documents(*lengths: int) -> list[Document]:
    return [Document("a file", "its digest", [1] * length) for length in lengths]


def test_held_out_texts_are_of_every_document_also_beside_a_long_one(tiny: ModelPair) -> None:
    stage, state = begun(tiny)
    texts = stage.draw(state, "text", documents(100_000, 11, 25), 8, 0)
    assert len(texts) == 8
    assert {text.document for text in texts} == {0, 1, 2}


def test_held_out_texts_of_one_document_are_refused_before_any_training(tiny: ModelPair) -> None:
    stage, state = begun(tiny, *documents(100, 100, 3, 100))
    with pytest.raises(InputError, match="1 of the 2 held-out documents has"):
        stage.run(state)


def test_any_seed_that_the_option_takes_writes_texts(
    tiny: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of the number of texts, which keys them
    stage, state = begun(tiny, seed=2**31 - 1)
    assert len(stage.draw(state, "target", documents(20), 2, 2)) == 2


def test_a_result_that_another_run_has_written_meanwhile_is_named(
    tiny: ModelPair, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    vocabulary, (weight, _) = Vocabulary(range(9), VOCABULARY), tiny.drafter_head
    drafter = PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), weight[:9])
    rates, gain = torch.zeros(1, 1), Interval(0.1, 0.1, 0.1)
    stage, state = begun(tiny, out=tmp_path / "out")
    state.made[stage.name] = [distill.Outcome("tv", 0.0, rates, rates, gain, 1, drafter, [])]
    with pytest.raises(InputError, match=r"--out .*out exists"):
        stage.save(state, 0)
