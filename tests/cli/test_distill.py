"""`distill` writes a better drafter, or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda.__main__ import main
from rdk_cuda.cli import distill
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.huggingface import Steering
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter
from rdk_cuda.pair.loading import load_pair

from .calibrating import Pair, digests, write_texts
from .conftest import Calibrated

SMALL = ("--steps", "20", "--batch", "2", "--prompt", "8", "--tokens", "24")


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "HELD_OUT_TEXTS", 16)


def command(pair: Pair, drafter: Path, folder: Path, *options: object) -> list[str]:
    """What follows `python -m rdk_cuda`."""
    files = write_texts(folder / "text", count=10)
    said = ("--target", pair[0], "--text", *files[:5], "--held-out", *files[5:])
    return ["distill", *map(str, (drafter, *said, "--out", folder / "out", *SMALL, *options))]


@pytest.mark.ci
@pytest.mark.parametrize("train", ["virtual-rows", "all"])
def test_it_writes_a_calibrated_directory_that_more_is_accepted_of(
    train: str,
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--train", train, "--loss", "tv", "lk", "--learning-rate", "0.01")
    before = digests(calibrated.saved)
    assert main(command(directories, calibrated.saved, tmp_path, *options)) == 0
    assert digests(calibrated.saved) == before
    model, drafter, settings = load_drafter(tmp_path / "out")
    came_model, came, calibration = load_drafter(calibrated.saved)
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
    printed = capsys.readouterr().out
    assert printed.count("of the drafts were accepted, now") == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_a_drafter_that_is_not_better_is_not_written(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--learning-rate", "100", "--data", "text")
    assert main(command(directories, calibrated.saved, tmp_path, *options)) == 1
    assert "not above 0: nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_an_interrupted_run_writes_the_same_files_later(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    options = ("--learning-rate", "0.01", "--data", "drafter")
    assert main(command(directories, calibrated.saved, whole, *options)) == 0

    class Interrupting(distill.Distillation):
        def run(self, each: Any = None, report: Any = None) -> PrunedDrafter:
            def stop(step: int, now: float) -> None:
                raise KeyboardInterrupt

            return super().run(each, stop)

    with monkeypatch.context() as patch:
        patch.setattr(distill, "Distillation", Interrupting)
        assert main(command(directories, calibrated.saved, halves, *options)) == 130
    assert "The same command goes on from" in capsys.readouterr().err
    assert main(command(directories, calibrated.saved, halves, *options)) == 0
    assert digests(whole / "out") == digests(halves / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "lifted-rows"), "no lifted rows: it had rows for all tokens; train head"),
        (("--train", "all", "--dtype", "bfloat16"), "needs float32 with --train all"),
        (("--prompt", "2000"), "needs one of 2000, a window"),
        (("--train", "body"), "--train body: needs one of head, virtual-rows, lifted-rows, all"),
        (("--loss", "tv", "kl"), "--loss kl: needs one of tv, log-alpha, lk, forward-kl"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(
    options: tuple[str, ...],
    message: str,
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command(directories, calibrated.saved, tmp_path, *options)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_few_held_out_documents_are_refused(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = command(directories, calibrated.saved, tmp_path)
    place = line.index("--held-out")
    assert main([*line[: place + 2], *line[line.index("--out") :]]) == 2
    assert "1 document is held out; needs 4" in capsys.readouterr().err


def test_a_steered_drafter_is_refused(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steered = Path(shutil.copytree(calibrated.saved, tmp_path / "steered"))
    model, _, _ = load_drafter(steered)
    Steering.between(load_pair(*directories).target, model).save(steered / "steering.safetensors")
    assert main(command(directories, steered, tmp_path)) == 2
    assert "is steered; needs a drafter that is not yet" in capsys.readouterr().err
