"""A directory with a model and a pruned drafter: whole, as it was saved, or refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.drafter import PrunedDrafter, SavedDrafterError, prune_head
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import (
    PRUNED,
    calibrated_drafts,
    drafting_model,
    load_drafter,
    load_pruned,
    save_drafter,
)

from ..tiny_llamas import llama
from ..tiny_models import replace_head

SIZE, WIDTH, CLUSTERS = 48, 16, 4
SETTINGS = {"keep": 0.25, "temperature": 1.0, "corpus": ["wörter.txt"], "window": None}


def tiny(*, tied: bool, seed: int = 1, width: int = WIDTH) -> Any:
    of = {"bos_token_id": None, "eos_token_id": None, "intermediate_size": 24}
    of |= {"tie_word_embeddings": tied, "initializer_range": 0.5}
    return llama(SIZE, seed=seed, width=width, **of)


def words() -> Any:
    model = tokenizers.models.WordLevel({f"word{id}": id for id in range(SIZE)})
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))


def pruned(model: Any, *, biased: bool = False) -> PrunedDrafter:
    """12 kept tokens in an order that is not ascending, and 4 virtual ones."""
    vocabulary = Vocabulary(range(36, 0, -3), target_size=SIZE)
    clusters = torch.full((SIZE,), -1)
    clusters[vocabulary.pruned] = torch.arange(SIZE - 12) % CLUSTERS
    affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.arange(1.0, SIZE + 1))
    bias = torch.linspace(-1, 1, SIZE) if biased else None
    head = prune_head(model.lm_head.weight, bias, vocabulary, virtual=affinity)
    return PrunedDrafter(vocabulary, affinity, *head)


def names(folder: Path) -> list[str]:
    """What is there, with hidden files."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory to be spoiled."""
    model = tiny(tied=True)
    save_drafter(tmp_path / "pruned", model, words(), pruned(model), SETTINGS)
    return tmp_path / "pruned"


def generate(model: Any, drafter: PrunedDrafter) -> list[list[int]]:
    target = HuggingFaceModel(tiny(tied=False, seed=2))
    decoder = SpeculativeDecoder(target, drafting_model(model, drafter), drafter.affinity)
    tokens, statistics, _ = decoder.generate([[1, 2], [47]], max_new_tokens=30, seeds=[5, 6])
    assert statistics.tokens == 60
    return tokens


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_loaded_drafter_decodes_the_same_tokens(
    tmp_path: Path, one_thread: None, tied: bool
) -> None:
    model = tiny(tied=tied)
    drafter = pruned(model, biased=True)
    save_drafter(tmp_path / "deep" / "pruned", model, words(), drafter, SETTINGS)
    loaded, again, settings = load_drafter(tmp_path / "deep" / "pruned")
    assert settings == SETTINGS
    assert not loaded.training
    assert generate(loaded, again) == generate(model, drafter)


def test_the_model_inside_is_an_ordinary_one_with_its_full_head(saved: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved / "drafter")
    assert model.lm_head.weight.shape == (SIZE, WIDTH)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved / "drafter")
    assert tokenizer.convert_tokens_to_ids("word17") == 17


def test_the_dtype_is_that_of_what_was_saved(tmp_path: Path) -> None:
    model = tiny(tied=True).to(torch.bfloat16)
    save_drafter(tmp_path / "pruned", model, words(), pruned(model), {})
    loaded, drafter, _ = load_drafter(tmp_path / "pruned")
    assert loaded.dtype == drafter.weight.dtype == torch.bfloat16


def test_the_pruned_drafter_is_read_without_the_model(saved: Path) -> None:
    for file in (saved / "drafter").iterdir():
        file.unlink()
    drafter, settings = load_pruned(saved)
    assert drafter.vocabulary.draft_size == 12
    assert settings == SETTINGS


# What already exists.


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    model = tiny(tied=True)
    file, folder, link = tmp_path / "file", tmp_path / "folder", tmp_path / "link"
    file.write_text("mine")
    folder.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, folder, link):
        with pytest.raises(SavedDrafterError, match=f"{path} exists; name another directory"):
            save_drafter(path, model, words(), pruned(model), {})
    (folder / "thesis.tex").write_text("mine")
    for path in (file, folder, link):
        with pytest.raises(SavedDrafterError, match=f"{path} is not a saved drafter"):
            save_drafter(path, model, words(), pruned(model), {}, overwrite=True)
    (folder / "calibration.json").write_text('{"camera": 1}')
    (tmp_path / "cameras").mkdir()
    shutil.copytree(folder, tmp_path / "cameras" / "one")
    for path in (folder, tmp_path / "cameras"):
        with pytest.raises(SavedDrafterError, match=f"{path} is not a saved drafter"):
            save_drafter(path, model, words(), pruned(model), {}, overwrite=True)
    assert names(tmp_path) == ["cameras", "file", "folder", "link"]
    assert (folder / "thesis.tex").read_text() == "mine"


def test_a_saved_drafter_is_overwritten_as_a_whole(saved: Path) -> None:
    (saved / "other.safetensors").write_bytes(b"of the drafter before")
    model = tiny(tied=False, seed=7)
    save_drafter(saved, model, words(), pruned(model), {"new": True}, overwrite=True)
    assert names(saved) == ["calibration.json", "drafter", PRUNED]
    assert load_drafter(saved)[2] == {"new": True}
    assert names(saved.parent) == ["pruned"]


def test_a_directory_of_saved_drafters_is_overwritten_whatever_their_version(
    saved: Path, tmp_path: Path
) -> None:
    several = tmp_path / "several"
    shutil.copytree(saved, several / "a")
    shutil.copytree(saved, several / "b")
    spoil_json(several / "b" / "calibration.json", format_version="2")
    model = tiny(tied=True)
    save_drafter(several, model, words(), pruned(model), {"new": True}, overwrite=True)
    assert load_drafter(several)[2] == {"new": True}


@pytest.mark.parametrize("failure", ["the disk is full", "Ctrl-C between two renamings"])
def test_a_failure_leaves_no_directory_and_an_old_one_as_it_was(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    rename = Path.rename

    def full(drafter: PrunedDrafter, path: Path) -> None:
        path.write_bytes(b"half")  # and what a kill leaves is hidden
        assert [name for name in names(tmp_path) if not name.startswith(".")] == ["pruned"]
        raise OSError("No space left on device")

    def interrupted(source: Path, target: Path) -> Path:
        if (source / "drafter").exists() and source.suffix == ".tmp" and target == saved:
            raise KeyboardInterrupt
        return rename(source, target)

    model, paths = tiny(tied=True), [saved]
    if failure == "the disk is full":
        monkeypatch.setattr(PrunedDrafter, "save", full)
        paths.append(tmp_path / "new")
    else:
        monkeypatch.setattr(Path, "rename", interrupted)
    for path in paths:
        with pytest.raises((OSError, KeyboardInterrupt)):
            save_drafter(path, model, words(), pruned(model), {"new": True}, overwrite=True)
    assert names(tmp_path) == ["pruned"]
    assert load_drafter(saved)[2] == SETTINGS


# What does not belong together.


def test_parts_that_disagree_are_not_saved(tmp_path: Path) -> None:
    model = tiny(tied=True)
    drafter = pruned(model)
    for weight, message in (
        (drafter.weight[:-1], r"weight has shape \[15, 16\]"),
        (drafter.weight[:, :8], r"is \[48, 16\]; needs .* = \[48, 8\]"),
    ):
        with pytest.raises(SavedDrafterError, match=message):
            save_drafter(tmp_path / "pruned", model, words(), replace(drafter, weight=weight), {})
    assert names(tmp_path) == []


def test_a_model_whose_head_was_replaced_is_not_saved(tmp_path: Path) -> None:
    model = tiny(tied=True)
    drafter = pruned(model)
    replace_head(model, drafter.weight)
    with pytest.raises(SavedDrafterError, match="the drafter with its full head"):
        save_drafter(tmp_path / "pruned", model, words(), drafter, {})
    with pytest.raises(SavedDrafterError, match="LlamaModel has no LM head"):
        save_drafter(tmp_path / "pruned", model.base_model, words(), drafter, {})


@pytest.mark.parametrize("value", [float("nan"), torch.ones(1), {1, 2}])
def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path, value: Any) -> None:
    model = tiny(tied=True)
    with pytest.raises(SavedDrafterError, match="settings cannot be JSON"):
        save_drafter(tmp_path / "pruned", model, words(), pruned(model), {"value": value})
    assert names(tmp_path) == []


# Broken directories.


def spoil_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def with_another_model(directory: Path) -> None:
    tiny(tied=True, width=2 * WIDTH).save_pretrained(directory / "drafter")


def with_pickled_weights(directory: Path) -> None:
    model = directory / "drafter"
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "pruned is no directory; needs one that"),
        (lambda d: (d / PRUNED).unlink(), f"pruned has no {PRUNED}; needs the whole"),
        (lambda d: (d / "calibration.json").unlink(), "has no calibration.json"),
        (lambda d: (d / "drafter").rename(d / "model"), "has no drafter"),
        (lambda d: truncate(d / PRUNED), f"{PRUNED} is not a complete safetensors file"),
        (lambda d: truncate(d / "drafter" / "model.safetensors"), "pruned/drafter: "),
        (lambda d: (d / "calibration.json").write_text("{"), "calibration.json is not JSON"),
        (lambda d: (d / "calibration.json").write_bytes(b"\xff"), "calibration.json is not JSON"),
        (
            lambda d: (d / "calibration.json").write_text("[" * 100_000),
            "calibration.json is not JSON .is nested more than 100 times",
        ),
        (lambda d: (d / "calibration.json").write_text("[]"), "json is of format None; needs"),
        (
            lambda d: spoil_json(d / "calibration.json", format_version="2"),
            "calibration.json has format version '2'; this rdk_cuda reads version 1",
        ),
        (lambda d: spoil_json(d / "calibration.json", settings=3), "has no settings"),
        (with_another_model, r"drafter: the LM head of LlamaForCausalLM is \[48, 32\]; needs"),
        (with_pickled_weights, "safetensors"),
        (lambda d: (d / "drafter" / "config.json").unlink(), "drafter has no config.json"),
        (lambda d: truncate(d / "drafter" / "config.json"), "pruned/drafter"),
        (lambda d: spoil_json(d / "drafter" / "config.json", num_hidden_layers=2), "lacks 9"),
    ],
)
def test_a_broken_directory_is_refused_by_the_file(saved: Path, spoil: Any, message: str) -> None:
    spoil(saved)
    with pytest.raises(SavedDrafterError, match=message) as refusal:
        load_drafter(saved)
    assert str(saved) in str(refusal.value)


@pytest.mark.parametrize("length", [0, False, "", {}, {"rule": "Product"}])
def test_lengths_that_no_calibration_has_written_are_refused(length: Any) -> None:
    assert calibrated_drafts({"drafts": {"length": None, "draft_length": 3}})["length"] is None
    with pytest.raises(SavedDrafterError, match=r"calibration\.json, drafts: length is"):
        calibrated_drafts({"drafts": {"length": length, "draft_length": 3}})
