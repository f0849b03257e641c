"""`calibrate` writes a drafter in the dtype that it came in, and counts its head's bytes in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("rich")

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rdk_cuda.__main__ import main
from rdk_cuda.cli.models import Models, stored_dtype
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import drafting_model, load_drafter

from .calibrating import command, write_texts

Pair = tuple[Path, Path]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MODEL = "model.safetensors"


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def calibrated(
    request: pytest.FixtureRequest,
    one_thread: None,
    directories: Pair,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[torch.dtype, Path]:
    """A dtype, and a folder with a `drafter` of it, and what was calibrated in `out`."""
    folder: Path = tmp_path_factory.mktemp("dtypes")
    model = AutoModelForCausalLM.from_pretrained(directories[1], dtype=request.param)
    model.save_pretrained(folder / "drafter")
    files = write_texts(folder / "text")
    assert main(command((directories[0], folder / "drafter"), files, folder / "out")) == 0
    return request.param, folder


def test_the_model_is_the_one_that_came_in_to_the_bit(
    calibrated: tuple[torch.dtype, Path],
) -> None:
    dtype, folder = calibrated
    before = load_file(folder / "drafter" / MODEL)
    after = load_file(folder / "out" / "drafter" / MODEL)
    assert {tensor.dtype for tensor in before.values()} == {dtype}
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == dtype, name
        assert torch.equal(after[name], tensor), name
    sizes = [(folder / part / MODEL).stat().st_size for part in ("drafter", "out/drafter")]
    assert sizes[0] == sizes[1]
    config = json.loads((folder / "out" / "drafter" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")


def test_the_small_head_has_rows_of_the_full_one_in_its_dtype(
    calibrated: tuple[torch.dtype, Path],
) -> None:
    dtype, folder = calibrated
    full = load_file(folder / "drafter" / MODEL)["lm_head.weight"]
    head = load_file(folder / "out" / "pruned_drafter.safetensors")
    assert head["weight"].dtype == dtype
    kept = head["kept"].long()
    assert torch.equal(head["weight"][: len(kept)], full[kept])
    assert len(head["weight"]) > len(kept)  # virtual ones too


def test_a_loaded_drafter_drafts_in_it(calibrated: tuple[torch.dtype, Path], tiny: Models) -> None:
    dtype, folder = calibrated
    model, drafter, _ = load_drafter(folder / "out")
    assert model.dtype == drafter.weight.dtype == dtype
    decoder = SpeculativeDecoder(
        HuggingFaceModel(tiny.target),
        drafting_model(model, drafter),
        drafter.affinity,
        dynamic_tokens=drafter.dynamic_tokens,
    )
    prompt = tiny.tokenizer((folder / "text" / "4.txt").read_text())["input_ids"][:20]
    tokens, _ = decoder.generate([prompt], max_new_tokens=40, temperature=0)
    alone = list(prompt)
    with torch.no_grad():
        for _ in range(40):
            alone.append(int(tiny.target(torch.tensor([alone])).logits[0, -1].argmax()))
    assert tokens == [alone[20:]]


def test_bytes_of_heads_are_counted_in_it(calibrated: tuple[torch.dtype, Path]) -> None:
    dtype, folder = calibrated
    for row in figures_of(folder / "out"):
        weights = 8 * (row["head_rows"] + row["dynamic_columns"])
        assert row["head_bytes"] == pytest.approx(dtype.itemsize * weights)


def test_figures_are_those_of_what_was_written(
    calibrated: tuple[torch.dtype, Path], directories: Pair, tmp_path: Path
) -> None:
    """Of the rounded virtual rows, as `evaluate` reads them."""
    _, folder = calibrated
    argv = ("--target", directories[0], "--text", folder / "text" / "4.txt", "--output", tmp_path)
    assert main(["evaluate", str(folder / "out"), *map(str, argv), "--temperature", "1"]) == 0
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    figures = figures_of(folder / "out")
    for name in ("acceptance", "head_bytes"):
        assert [row[name] for row in figures] == [row[name] for row in rows]


def figures_of(directory: Path) -> list[dict[str, Any]]:
    settings = json.loads((directory / "calibration.json").read_text())["settings"]
    figures: list[dict[str, Any]] = settings["figures"]
    return figures


def test_of_several_dtypes_the_narrowest_that_loses_nothing_is_taken(
    calibrated: tuple[torch.dtype, Path], tmp_path: Path
) -> None:
    dtype, folder = calibrated
    assert stored_dtype(folder / "drafter") == dtype
    shutil.copytree(folder / "drafter", tmp_path / "mixed")
    file = tmp_path / "mixed" / MODEL
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    save_file(tensors, file, {"format": "pt"})
    assert stored_dtype(tmp_path / "mixed") == torch.float32
