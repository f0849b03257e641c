"""`python -m rdk_cuda calibrate` writes a drafter that drafts without loss, and says what of."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("rich")

import rdk_cuda
from rdk_cuda.__main__ import main
from rdk_cuda.cli import documents as text
from rdk_cuda.cli.documents import Document, window_length
from rdk_cuda.cli.models import Models
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.evaluation.rows import TIMED
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import (
    drafting_model,
    load_drafter,
    load_pruned,
)
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

from .calibrating import command, digests, write_texts

Pair = tuple[Path, Path]


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module")
def folder(one_thread: None, directories: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With five files in `text`, and what was calibrated on them in `out`."""
    folder = tmp_path_factory.mktemp("calibrated")
    files = write_texts(folder / "text")
    mask = os.umask(0o027)
    try:
        assert main(command(directories, files, folder / "out")) == 0
    finally:
        os.umask(mask)
    return folder


def texts(folder: Path) -> list[Path]:
    return sorted((folder / "text").iterdir())


def settings_of(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((directory / "calibration.json").read_text())["settings"]
    return settings


def test_the_directory_is_whole_and_nothing_is_left_beside_it(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["out", "text"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "calibration.json",
        "drafter",
        "pruned_drafter.safetensors",
    ]


def test_files_follow_the_umask(folder: Path) -> None:
    """Also those that safetensors would make readable by their owner alone."""
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (folder / "out").rglob("*")
        if path.is_file()
    }
    assert len(modes) >= 6
    assert set(modes.values()) == {0o640}, modes


def test_dynamic_tokens_come_back_with_their_table(folder: Path, tiny: Models) -> None:
    drafter, _ = load_pruned(folder / "out")
    assert drafter.dynamic_tokens is not None
    pruned = drafter.vocabulary.pruned.tolist()
    named = drafter.dynamic_tokens([[*pruned[:20], 5]])[0].tolist()
    assert named == pruned[19:7:-1]  # of the last 16 tokens the newest 12
    ids = tiny.tokenizer(texts(folder)[0].read_text())["input_ids"]
    kept = set(drafter.vocabulary.kept.tolist())
    follower = next(pair for pair in pairwise(ids) if pair[1] not in kept)
    assert follower[1] in drafter.dynamic_tokens([[follower[0]]])[0].tolist()


def test_greedy_decoding_with_it_is_the_targets_own(folder: Path, tiny: Models) -> None:
    model, drafter, _ = load_drafter(folder / "out")
    decoder = SpeculativeDecoder(
        HuggingFaceModel(tiny.target),
        drafting_model(model, drafter),
        drafter.affinity,
        dynamic_tokens=drafter.dynamic_tokens,
    )
    prompt = tiny.tokenizer(texts(folder)[4].read_text())["input_ids"][:20]
    tokens, statistics = decoder.generate([prompt], max_new_tokens=40, temperature=0)
    alone = list(prompt)
    with torch.no_grad():
        for _ in range(40):
            alone.append(int(tiny.target(torch.tensor([alone])).logits[0, -1].argmax()))
    assert tokens == [alone[20:]]
    assert statistics.tokens == 40


def test_special_tokens_and_bytes_are_always_kept(folder: Path, tiny: Models) -> None:
    always = indispensable_tokens(tiny.tokenizer)
    assert always.numel() == 257
    drafter, _ = load_pruned(folder / "out")
    assert drafter.vocabulary.draft_size == 300
    assert bool(torch.isin(always, drafter.vocabulary.kept).all())


def test_settings_say_what_was_read_and_with_which_versions(folder: Path) -> None:
    settings = settings_of(folder / "out")
    assert settings["versions"]["rdk_cuda"] == rdk_cuda.__version__
    assert settings["versions"]["torch"] == torch.__version__
    files = [
        {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in texts(folder)
    ]
    assert settings["text"] == files[:4]
    assert settings["held_out"] == files[4:]
    assert settings["keep"] == 0.75


def test_figures_are_those_of_evaluate_on_the_same_text(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    argv = ("--target", directories[0], "--text", texts(folder)[4], "--output", tmp_path)
    assert main(["evaluate", str(folder / "out"), *map(str, argv), "--temperature", "1"]) == 0
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    figures = settings_of(folder / "out")["figures"]
    for saved, row in zip(figures, rows, strict=True):
        assert row["speed_up"] is None or row["speed_up"] > 0
        assert {saved[name] for name in TIMED} == {None}
        assert saved == {**row, **dict.fromkeys(TIMED)}
    methods = [row["method"] for row in figures]
    assert methods == ["full drafter", "pruned drafter", "virtual+dynamic"]
    assert 0 < figures[1]["acceptance"] < figures[0]["acceptance"] < 1


def test_the_same_command_gives_the_same_files_to_the_bit(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    assert main(command(directories, texts(folder), tmp_path / "out")) == 0
    assert digests(tmp_path / "out") == digests(folder / "out")
    # The control: another seed samples and clusters differently.
    argv = command(directories, texts(folder), tmp_path / "other", "--seed", 1)
    assert main(argv) == 0
    file = "pruned_drafter.safetensors"
    assert digests(tmp_path / "other")[file] != digests(folder / "out")[file]


def test_what_is_held_out_is_not_calibrated_on(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    """Other held-out text changes the figures, and not a bit of the drafter."""
    files = texts(folder)
    for name, held_out in (("one", files[3]), ("other", files[4])):
        argv = command(directories, files[:3], tmp_path / name, "--held-out", held_out)
        assert main(argv) == 0
    one, other = digests(tmp_path / "one"), digests(tmp_path / "other")
    assert one.pop("calibration.json") != other.pop("calibration.json")
    assert one == other
    figures = [settings_of(tmp_path / name)["figures"] for name in ("one", "other")]
    assert figures[0] != figures[1]


def documents(lengths: list[int]) -> list[Document]:
    return [Document(f"{place}", f"{place}", [0] * size) for place, size in enumerate(lengths)]


@pytest.mark.parametrize(
    ("count", "held_out"), [(2, [1]), (3, [2]), (4, [3]), (5, [4]), (9, [4]), (10, [4, 9])]
)
def test_every_fifth_document_is_held_out_and_of_fewer_the_last(
    count: int, held_out: list[int]
) -> None:
    given = documents([1] * count)
    calibrated, measured = text.hold_out(given)
    assert measured == [given[place] for place in held_out]
    assert calibrated == [document for document in given if document not in measured]


def test_windows_are_as_long_as_most_of_the_text_allows() -> None:
    assert window_length(documents([9000, 20]), 4096, 4) == text.WINDOW
    assert window_length(documents([9000, 20]), 100, 4) == 100
    # Not 300, which would leave out all but one document.
    assert window_length(documents([297, 300, 299, 298]), 4096, 4) == 297
    assert window_length(documents([100] * 9 + [20]), 4096, 4) == 100
    assert window_length(documents([4, 4, 4, 8]), 4096, 4) == 6


def test_documents_too_short_for_a_window_are_counted(
    folder: Path, directories: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("def value")
    files = [short, *texts(folder)]
    assert main(command(directories, files, tmp_path / "out")) == 0
    assert "1 documents were left out, shorter than" in capsys.readouterr().out


# Which tokens are kept.


@pytest.mark.parametrize("score", ["frequency", "variance"])
def test_tokens_can_be_kept_by_other_scores(
    folder: Path, directories: Pair, tmp_path: Path, tiny: Models, score: str
) -> None:
    argv = command(directories, texts(folder), tmp_path / "out", "--keep-by", score)
    assert main(argv) == 0
    drafter, settings = load_pruned(tmp_path / "out")
    assert settings["keep_by"] == score
    plain, _ = load_pruned(folder / "out")
    assert drafter.vocabulary.draft_size == 300
    assert drafter.vocabulary != plain.vocabulary
    if score == "frequency":
        read = {
            id for file in texts(folder)[:4] for id in tiny.tokenizer(file.read_text())["input_ids"]
        }
        assert len(read) < 300 - 257  # so all of the text's tokens fit
        assert read <= set(drafter.vocabulary.kept.tolist())


@pytest.mark.parametrize("form", ["text", "SGLang"])
def test_tokens_can_be_named_and_indispensable_ones_join_them(
    folder: Path, directories: Pair, tmp_path: Path, tiny: Models, form: str
) -> None:
    file = tmp_path / "kept"
    if form == "text":
        file.write_text("399\n300\n7\n")
    else:
        torch.save([399, 300, 7], file)
    argv = command(directories, texts(folder), tmp_path / "out", "--kept", file)
    assert main(argv) == 0
    drafter, _ = load_pruned(tmp_path / "out")
    always = set(indispensable_tokens(tiny.tokenizer).tolist())
    assert set(drafter.vocabulary.kept.tolist()) == always | {399, 300, 7}
    assert drafter.vocabulary.draft_ids[:3].tolist() == [399, 300, 7]


def test_all_tokens_can_be_kept(folder: Path, directories: Pair, tmp_path: Path) -> None:
    argv = command(directories, texts(folder), tmp_path / "out", "--keep", 1)
    assert main(argv) == 0
    drafter, _ = load_pruned(tmp_path / "out")
    assert drafter.affinity.draft_size == 400
    assert drafter.dynamic_tokens is None
    load_drafter(tmp_path / "out")


def test_a_temperature_at_which_no_pruned_token_has_mass_needs_no_virtual_ones(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    argv = command(directories, texts(folder), tmp_path / "out", "--temperature", 1e-5)
    assert main(argv) == 0
    _, drafter, _ = load_drafter(tmp_path / "out")
    assert drafter.affinity.draft_size == 300


def test_more_of_everything_than_there_is_means_all_of_it(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    many = ("--virtual", 10**12, "--dynamic", 10**12, "--positions", 10**12)
    assert main(command(directories, texts(folder), tmp_path / "out", *many)) == 0
    _, drafter, _ = load_drafter(tmp_path / "out")
    assert drafter.affinity.draft_size == 300 + 100
    assert drafter.dynamic_tokens is not None
    assert drafter.dynamic_tokens([[5]]).shape == (1, 400)


def test_an_earlier_calibration_is_replaced_if_asked(
    folder: Path, directories: Pair, tmp_path: Path
) -> None:
    for options in ((), ("--overwrite", "--keep", 0.8)):
        assert main(command(directories, texts(folder), tmp_path / "out", *options)) == 0
    assert settings_of(tmp_path / "out")["keep"] == 0.8
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
