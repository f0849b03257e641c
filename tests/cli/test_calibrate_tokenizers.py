"""`calibrate`, `evaluate` and `inspect` of a drafter with another tokenizer than its target's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rdk_cuda.__main__ import main
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter
from rdk_cuda.integrations.huggingface.text_drafter import load_text_drafter
from rdk_cuda.recipes.stages.tokenizers import INTERSECTION, LEVEL, PREFIX
from tests.tiny_models import save_model
from tests.trained_tokenizers import byte_level

from .calibrating import in_one_thread, settings_of
from .conftest import Desk

Pair = tuple[Path, Path]

SIZE = 2010


@pytest.fixture(scope="module")
def both(directories: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The tiny target of 400 tokens, and a drafter that reads English in 2,000 of its own."""
    drafter = tmp_path_factory.mktemp("other") / "drafter"
    save_model(drafter, hidden=8, seed=3, vocabulary=SIZE)  # more than its tokenizer has
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(drafter)
    return directories[0], drafter


def command(both: Pair, texts: list[Path], out: Path, *options: object) -> list[str]:
    argv = ("--target", both[0], "--drafter", both[1], "--text", *texts, "--out", out)
    return ["calibrate", *map(str, (*argv, "--positions", 400, *options))]


@pytest.fixture(scope="module")
def saved(both: Pair, texts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "out"
    in_one_thread(command(both, texts, out))
    return out


def test_the_methods_are_measured_and_the_best_on_the_recording_is_written(saved: Path) -> None:
    settings = settings_of(saved)
    rows = {row["method"]: row for row in settings["figures"]}
    assert tuple(rows) == LEVEL
    assert settings["method"] in LEVEL
    assert all(0 < row["acceptance"] <= 1 for row in rows.values())
    common = settings["common"]
    assert 0.1 < common["drafter_vocabulary"] < common["target_vocabulary"] < 1
    assert 0 < common["target_mass"] < 1
    assert 0.5 < common["text"] < 1


def test_what_was_written_decodes_as_the_target_alone(
    saved: Path, both: Pair, texts: list[Path]
) -> None:
    target = AutoModelForCausalLM.from_pretrained(both[0]).eval()
    tokenizer = AutoTokenizer.from_pretrained(both[0])
    ids = tokenizer(texts[0].read_text()[:60], return_tensors="pt")["input_ids"]
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    generate = Generate.from_directory(saved)
    expected = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, **options, custom_generate=generate), expected)
    found = load_text_drafter(saved)
    decoder = SpeculativeDecoder(
        HuggingFaceModel(target),
        HuggingFaceModel(found.model),
        found.affinity,
        tokenizer=found.tokenizer,
        drafter_tokenizer=found.drafter_tokenizer,
    )
    tokens, statistics, _ = decoder.generate(ids.tolist(), max_new_tokens=24, temperature=0.0)
    assert tokens == expected[:, ids.shape[1] :].tolist()
    assert statistics.drafted[0] > 0
    _, sampled, _ = decoder.generate(ids.tolist(), max_new_tokens=24, seeds=[1])
    assert sampled.drafted[0] > 0


def test_evaluate_measures_and_inspect_tells_what_calibrate_did(
    desk: Desk, saved: Path, both: Pair
) -> None:
    rows = desk.evaluate(saved, text=desk.texts[4:5])["rows"]
    settings = settings_of(saved)
    expected = {row["method"]: row["acceptance"] for row in settings["figures"]}
    found = {row["method"]: row["acceptance"] for row in rows}
    assert found.keys() == {INTERSECTION, PREFIX, settings["method"]}
    # The fifth of the texts is the one that calibrate held out by itself.
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-6)
    desk.capsys.readouterr()
    assert main(["inspect", str(saved)]) == 0
    said = desk.capsys.readouterr().out
    share = settings["common"]["target_mass"]
    assert f"these have {share:.1%} of the target's mean probability" in said
    assert f" {SIZE}\n" in said


def test_several_temperatures_are_written_next_to_each_other(desk: Desk, both: Pair) -> None:
    out = desk.out
    assert main(command(both, desk.texts, out, "--temperature", 0.7, 1)) == 0
    assert {each.name for each in out.iterdir()} == {"temperature-0.7", "temperature-1"}
    assert settings_of(out / "temperature-0.7")["temperature"] == 0.7
    assert desk.capsys.readouterr().out.count("The tokenizers differ.") == 2


def test_pruning_and_another_target_are_refused(desk: Desk, saved: Path, both: Pair) -> None:
    for option in (("--keep", 0.5), ("--virtual", 8), ("--draft-cost", 0.2)):
        line = desk.refused(command(both, desk.texts, desk.out, *option))
        assert f"{option[0]}: prunes a drafter with the target's tokenizer, and " in line
    argv = ("--text", desk.texts[4], "--output", desk.folder, "--target")
    line = desk.refused(["evaluate", *map(str, (saved, *argv, both[1]))])
    assert "leads from a drafter's 2010 tokens to the 400 of another tokenizer" in line


def test_a_part_that_is_missing_is_named(saved: Path, both: Pair, tmp_path: Path) -> None:
    with pytest.raises(SavedDrafterError, match=r"has no pruned_drafter.safetensors"):
        load_drafter(saved)
    with pytest.raises(SavedDrafterError, match=r"load_text_drafter: .*affinity.safetensors"):
        load_text_drafter(tmp_path)
