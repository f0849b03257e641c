"""`python -m rdk_cuda calibrate` writes a drafter that drafts without loss, and says how."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import rdk_cuda
from rdk_cuda.__main__ import main
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.lengths import Product
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.dynamic_tokens import screens_of
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.saved_drafter import (
    drafting_model,
    load_drafter,
    load_pruned,
)
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import (
    WINDOW,
    Document,
    hold_out,
    read_documents,
    window_length,
)
from rdk_cuda.recipes.inputs.loading import load_pair, stored_dtype
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.report.rows import TIMED
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

from .calibrating import command, digests, settings_of, sources
from .conftest import Calibrated, Desk

MODEL = "model.safetensors"


def assert_greedy_decoding_is_the_targets_own(saved: Path, tiny: ModelPair, text: Path) -> None:
    model, drafter, _ = load_drafter(saved)
    assert model.dtype == drafter.weight.dtype
    decoder = SpeculativeDecoder(
        HuggingFaceModel(tiny.target),
        drafting_model(model, drafter),
        drafter.affinity,
        dynamic_tokens=drafter.dynamic_tokens,
    )
    prompt = tiny.tokenizer(text.read_text())["input_ids"][:20]
    tokens, statistics, _ = decoder.generate([prompt], max_new_tokens=40, temperature=0)
    alone = list(prompt)
    with torch.no_grad():
        for _ in range(40):
            alone.append(int(tiny.target(torch.tensor([alone])).logits[0, -1].argmax()))
    assert tokens == [alone[20:]]
    assert statistics.tokens == 40


def test_a_saved_drafter_has_what_was_asked_for_and_says_how_it_was_made(
    calibrated: Calibrated, tiny: ModelPair
) -> None:
    """Special tokens and bytes are kept, and dynamic tokens come back with their table."""
    always = indispensable_tokens(tiny.tokenizer)
    assert always.numel() == 257
    drafter, settings = load_pruned(calibrated.saved)
    assert drafter.vocabulary.draft_size == 300
    assert bool(torch.isin(always, drafter.vocabulary.kept).all())
    assert drafter.dynamic_tokens is not None
    pruned = drafter.vocabulary.pruned.tolist()
    found = drafter.dynamic_tokens([[*pruned[:20], 5]])[0].tolist()
    assert found == pruned[19:7:-1]  # of the last 16 tokens the newest 12
    ids = tiny.tokenizer(calibrated.text[0].read_text())["input_ids"]
    kept = set(drafter.vocabulary.kept.tolist())
    follower = next(pair for pair in pairwise(ids) if pair[1] not in kept)
    assert follower[1] in drafter.dynamic_tokens([[follower[0]]])[0].tolist()
    assert settings["versions"]["rdk_cuda"] == rdk_cuda.__version__
    assert settings["versions"]["torch"] == torch.__version__
    assert settings["text"] == sources(calibrated.text)
    assert settings["held_out"] == sources(calibrated.held_out)
    assert settings["keep"] == 0.75


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.ci)],
    ids=str,
)
def test_a_drafter_stays_in_its_dtype_and_figures_are_those_of_what_was_written(
    desk: Desk, tiny: ModelPair, dtype: torch.dtype
) -> None:
    drafter, saved = desk.pair[1], desk.calibrated.saved
    if dtype != torch.float32:
        drafter, saved = desk.folder / "drafter", desk.out
        AutoModelForCausalLM.from_pretrained(desk.pair[1], dtype=dtype).save_pretrained(drafter)
        held_out = ("--held-out", *desk.calibrated.held_out)
        argv = command((desk.pair[0], drafter), desk.calibrated.text, saved, *held_out)
        assert main(argv) == 0
    before, after = load_file(drafter / MODEL), load_file(saved / "drafter" / MODEL)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype == dtype, name
        assert torch.equal(after[name], tensor), name
    assert (drafter / MODEL).stat().st_size == (saved / "drafter" / MODEL).stat().st_size
    config = json.loads((saved / "drafter" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")

    head = load_file(saved / "pruned_drafter.safetensors")
    kept = head["kept"].long()
    assert head["weight"].dtype == dtype
    assert torch.equal(head["weight"][: len(kept)], before["lm_head.weight"][kept])
    assert len(head["weight"]) > len(kept)  # virtual ones too
    assert_greedy_decoding_is_the_targets_own(saved, tiny, desk.calibrated.held_out[0])

    # Of the rounded virtual rows, as `evaluate` reads them.
    figures = settings_of(saved)["figures"]
    rows = desk.evaluate(saved)["rows"]
    for one, row in zip(figures, rows, strict=True):
        assert {one[name] for name in TIMED} == {None}
        assert one == {**row, **dict.fromkeys(TIMED)}
        weights = 8 * (one["head_rows"] + one["dynamic_columns"])
        assert one["head_bytes"] == pytest.approx(dtype.itemsize * weights)
    methods = [row["method"] for row in figures]
    assert methods == ["full drafter", "pruned drafter", "virtual+dynamic"]
    assert 0 < figures[1]["acceptance"] < figures[0]["acceptance"] < 1


def test_files_of_several_dtypes_count_as_float32(desk: Desk) -> None:
    shutil.copytree(desk.pair[1], desk.folder / "mixed")
    file = desk.folder / "mixed" / MODEL
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    file.with_name("model.fp16.safetensors").write_text("a pointer to another file")
    assert stored_dtype(desk.folder / "mixed") == torch.bfloat16
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    save_file(tensors, file, {"format": "pt"})
    assert stored_dtype(desk.folder / "mixed") == torch.float32


def test_a_drafter_s_sampling_parameters_are_left_out(desk: Desk) -> None:
    drafter = Path(shutil.copytree(desk.pair[1], desk.folder / "drafter"))
    own = {"temperature": 0.9, "top_p": 0.6, "eos_token_id": 0, "pad_token_id": -1}
    (drafter / "generation_config.json").write_text(json.dumps(own))
    model = load_pair(desk.pair[0], drafter).saved_drafter
    saved = model.generation_config.to_diff_dict()
    model.save_pretrained(desk.folder / "saved")
    assert not {"temperature", "top_p", "pad_token_id"} & saved.keys()
    assert saved["eos_token_id"] == 0


def test_the_same_command_gives_the_same_files_to_the_bit_with_the_modes_of_the_umask(
    desk: Desk,
) -> None:
    argv = command(desk.pair, desk.calibrated.text, desk.out)
    argv += ["--held-out", *map(str, desk.calibrated.held_out)]
    mask = os.umask(0o027)
    try:
        assert main(argv) == 0
    finally:
        os.umask(mask)
    assert os.listdir(desk.folder) == ["out"]
    assert sorted(path.name for path in desk.out.iterdir()) == [
        "calibration.json",
        "drafter",
        "pruned_drafter.safetensors",
    ]
    assert digests(desk.out) == digests(desk.calibrated.saved)
    files = [path for path in desk.out.rglob("*") if path.is_file()]
    # Safetensors would make some readable by their owner alone.
    assert {path.stat().st_mode & 0o777 for path in files} == {0o640}


def test_what_is_held_out_is_not_calibrated_on_and_other_seeds_give_other_drafters(
    desk: Desk,
) -> None:
    """Other held-out text changes the figures, and not a bit of the drafter."""
    argv = command(desk.pair, desk.calibrated.text, desk.out)
    held_out = ["--held-out", str(desk.calibrated.held_out[1])]
    assert main([*argv, *held_out]) == 0
    one, other = digests(desk.calibrated.saved), digests(desk.out)
    assert one.pop("calibration.json") != other.pop("calibration.json")
    assert one == other
    figures = [settings_of(path)["figures"] for path in (desk.calibrated.saved, desk.out)]
    assert figures[0] != figures[1]
    assert main([*argv, *held_out, "--overwrite", "--seed", "1"]) == 0
    file = "pruned_drafter.safetensors"
    assert digests(desk.out)[file] != one[file]
    assert os.listdir(desk.folder) == ["out"]  # it replaced the earlier one


def documents(lengths: list[int]) -> list[Document]:
    return [Document(f"{place}", f"{place}", [0] * size) for place, size in enumerate(lengths)]


@pytest.mark.parametrize(
    ("count", "held_out"), [(2, [1]), (3, [2]), (4, [3]), (5, [4]), (9, [4]), (10, [4, 9])]
)
def test_every_fifth_document_is_held_out_and_of_fewer_the_last(
    count: int, held_out: list[int]
) -> None:
    given = documents([1] * count)
    calibrated, measured = hold_out(given)
    assert measured == [given[place] for place in held_out]
    assert calibrated == [document for document in given if document not in measured]


def test_a_text_that_is_named_twice_is_one_document(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "a_again")]
    for file in files:
        file.write_text(file.name[0])
    found = read_documents(lambda text, verbose: {"input_ids": [ord(text)]}, [*files, files[1]])
    assert [(each.name, each.ids) for each in found] == [("a", [97]), ("b", [98])]


def test_windows_are_as_long_as_most_of_the_text_allows() -> None:
    assert window_length(documents([9000, 20]), 4096, 4) == WINDOW
    assert window_length(documents([9000, 20]), 100, 4) == 100
    # Not 300, which would leave out all but one document.
    assert window_length(documents([297, 300, 299, 298]), 4096, 4) == 297
    assert window_length(documents([100] * 9 + [20]), 4096, 4) == 100
    assert window_length(documents([4, 4, 4, 8]), 4096, 4) == 6
    with pytest.raises(InputError, match="at most 5 tokens are read at once; needs at least 6"):
        window_length(documents([9]), 5, 4)


# Which tokens are kept.


def test_tokens_can_be_named_and_indispensable_ones_join_them(desk: Desk, tiny: ModelPair) -> None:
    """In a text with a document that is too short, which is counted."""
    file, short = desk.folder / "kept", desk.folder / "caf\udce9.txt"  # a name that is not UTF-8
    short.write_text("def value")
    file.write_text("[399, 300, 7]")
    files = [short, *desk.calibrated.text]
    assert main(command(desk.pair, files, desk.out, "--kept", file)) == 0
    assert "1 documents were left out, shorter than" in desk.capsys.readouterr().out
    drafter, settings = load_pruned(desk.out)
    assert settings["keep"] == drafter.vocabulary.draft_size / 400
    assert settings["text"][0]["name"] == "caf\ufffd.txt"
    always = set(indispensable_tokens(tiny.tokenizer).tolist())
    assert set(drafter.vocabulary.kept.tolist()) == always | {399, 300, 7}
    assert drafter.vocabulary.draft_ids[:3].tolist() == [399, 300, 7]


@pytest.mark.parametrize(
    ("options", "columns", "dynamic"),
    [
        ("--keep 1", 400, None),
        # A temperature at which no pruned token has mass needs no virtual ones.
        pytest.param("--temperature 1e-5", 300, None, marks=pytest.mark.ci),
        # More of everything than there is means all of it.
        pytest.param(
            "--virtual 1000000000000 --dynamic 1000000000000 --positions 1000000000000 "
            "--keep-by frequency",
            400,
            400,
            marks=pytest.mark.ci,
        ),
        ("--dynamic 0", 308, None),  # as `rdk_cuda.integrations.sglang` needs it
    ],
)
def test_a_drafter_has_as_many_columns_as_options_and_text_make_possible(
    desk: Desk, options: str, columns: int, dynamic: int | None
) -> None:
    assert main(command(desk.pair, desk.calibrated.text, desk.out, *options.split())) == 0
    drafter, settings = load_pruned(desk.out)
    source = drafter.dynamic_tokens
    assert drafter.affinity.draft_size == columns
    assert (None if source is None else source([[5]]).shape[1]) == dynamic
    assert (settings["figures"][-1]["dynamic_columns"] == 0) == (dynamic is None)
    assert settings["keep_by"] == ("frequency" if "frequency" in options else "probability")


@pytest.mark.ci
def test_a_screen_within_the_budget_is_written_with_the_drafter_and_evaluated(desk: Desk) -> None:
    """Few enough tokens are pruned here that only offers of 64 fit."""
    options = "--screen-bytes", 0.95, "--dynamic", 1
    assert main(command(desk.pair, desk.calibrated.text, desk.out, *options)) == 0
    drafter, settings = load_pruned(desk.out)
    screen = next(screens_of(drafter.dynamic_tokens))
    row = 4 * drafter.weight.shape[1]
    assert screen.bytes + screen.width * row <= 0.95 * drafter.vocabulary.pruned.numel() * row
    assert f"{screen.width} screened tokens at rank {screen.rank}" in settings["tuned"]
    assert (settings["screen_bytes"], settings["batch"]) == (0.95, 1)
    figures = settings["figures"][-1]
    columns = figures["dynamic_columns"]
    assert columns > screen.width
    rows = drafter.weight.shape[0] + columns
    assert figures["head_bytes"] == pytest.approx(rows * row + screen.bytes)


def test_when_drafts_should_end_is_saved_with_the_drafter_and_used(desk: Desk) -> None:
    """And refused where somebody has changed it."""
    out = desk.out
    assert main(command(desk.pair, desk.calibrated.text, out, "--draft-cost", 0.1)) == 0
    found = settings_of(out)["drafts"]
    assert 1 <= found["draft_length"] <= 8
    assert found["gain"] >= 1
    generate = Generate.from_directory(out)
    assert generate.draft_length == found["draft_length"]
    assert (generate.length is None) == (found["length"] is None)
    path = out / "calibration.json"
    content = json.loads(path.read_text())
    content["settings"]["drafts"] |= {"length": {"rule": "Product", "at_least": 0.5}}
    path.write_text(json.dumps(content))
    assert Generate.from_directory(out, draft_length=3).length == Product(0.5)
    content["settings"]["drafts"] |= {"draft_length": 0}
    path.write_text(json.dumps(content))
    with pytest.raises(SavedDrafterError, match=r"calibration.json, drafts: draft_length is 0"):
        Generate.from_directory(out)
