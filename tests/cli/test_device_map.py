"""`--device-map auto`: a target spread over memory and the disk is the target.

There is no GPU here: what does not fit into the memory that accelerate is told of lies on the disk,
as empty parameters with hooks that read them, which is the same machinery.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.integrations.accelerate as placing

from rdk_cuda.__main__ import main
from rdk_cuda.cli import arguments
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.eagle3 import read_checkpoint
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.placement import same_weights, weight_sample
from rdk_cuda.recipes.inputs.loading import load_model, load_pair
from tests.tiny_models import save_model

from .calibrating import Pair, command, digests, settings_of
from .conftest import Desk
from .test_calibrate_states import save_checkpoint

LAYERS = 4
EMBEDDINGS, SOME_LAYERS = 52_000, 85_000  # bytes that these fit into, as accelerate counts them
MAP = ("--device-map", "auto")

Memory = Callable[[int], None]


@pytest.fixture(scope="module")
def target(directories: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of several layers, with the tokenizer of the others. Not to be changed."""
    folder: Path = tmp_path_factory.mktemp("spread") / "target"
    shutil.copytree(directories[0], folder)
    save_model(folder, hidden=16, seed=1, layers=LAYERS)
    return folder


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Says how many bytes there are; the rest of a model goes to the disk."""

    def limit(count: int) -> None:
        monkeypatch.setattr(placing, "get_balanced_memory", lambda *a, **k: {"cpu": count})

    return limit


def spread(target: Path) -> Any:
    return load_model("--target", target, device_map="auto")


def places(model: Any) -> list[str]:
    """Where its layers and its head are."""
    head = model.get_output_embeddings()
    return [
        "disk" if each.is_meta else "cpu"
        for each in (*(layer.mlp.up_proj.weight for layer in model.base_model.layers), head.weight)
    ]


def test_a_spread_target_reads_and_decodes_as_one_in_memory(target: Path, memory: Memory) -> None:
    memory(SOME_LAYERS)
    model, whole = spread(target), load_model("--target", target)
    assert set(places(model)) == {"cpu", "disk"}
    assert places(model)[-1] == "disk"
    prompts, settings = [[5, 3, 9, 200], [7], [1, 2]], {"max_new_tokens": 20, "temperature": 0}
    expected = SpeculativeDecoder(HuggingFaceModel(whole), draft_length=0)
    drafter = HuggingFaceModel(whole, head=whole.lm_head.weight + 0.1, recent=3)
    decoder = SpeculativeDecoder(HuggingFaceModel(model), drafter, draft_length=3)
    generated = decoder.generate(prompts, **settings)
    assert generated.tokens == expected.generate(prompts, **settings).tokens
    assert sum(generated.statistics.drafted) > sum(generated.statistics.accepted)
    states = [
        HuggingFaceModel(each, return_hidden=True, state_layers=range(LAYERS + 1))
        for each in (model, whole)
    ]
    for each in states:
        each.reset(1)
    spread_out, plain = (each.feed([[5, 3, 9]], [3]) for each in states)
    assert torch.equal(spread_out.logits, plain.logits)
    assert torch.equal(spread_out.states[0], plain.states[0])
    assert same_weights(weight_sample(model), whole)


@pytest.mark.parametrize("kind", ["a model", "on the target's states"])
def test_commands_write_what_they_write_without_it(
    desk: Desk, kind: str, target: Path, memory: Memory
) -> None:
    memory(SOME_LAYERS)
    drafter = desk.pair[1]
    if kind != "a model":
        whole = load_model("--target", target)
        drafter = save_checkpoint(
            desk.folder / "checkpoint", whole, shared=True, layers=(1, LAYERS - 1)
        )
    for name, options in (("plain", ()), ("spread", MAP)):
        assert main(command((target, drafter), desk.texts, desk.folder / name, *options)) == 0
    written, expected = digests(desk.folder / "spread"), digests(desk.folder / "plain")
    del written["calibration.json"], expected["calibration.json"]
    assert written == expected
    settings = settings_of(desk.folder / "spread")
    assert settings["device_map"] == "auto"
    plain = settings_of(desk.folder / "plain")
    assert settings["figures"] == plain["figures"]
    assert settings["target_weights"] == plain["target_weights"]
    both = (desk.evaluate(desk.folder / "plain", *o, target=target)["rows"] for o in (MAP, ()))
    spread_out, held_out = ([row["acceptance"] for row in rows] for rows in both)
    assert spread_out == held_out
    assert "offloaded" not in desk.capsys.readouterr().err


def test_a_drafter_s_rows_of_a_head_on_the_disk_are_the_target_s(
    target: Path, memory: Memory, tmp_path: Path
) -> None:
    whole = load_model("--target", target)
    folder = save_checkpoint(tmp_path / "checkpoint", whole, 100, shared=True)
    memory(EMBEDDINGS)
    model = spread(target)
    assert set(places(model)) == {"disk"}
    checkpoint = read_checkpoint(folder, model)
    rows = whole.lm_head.weight
    assert torch.equal(checkpoint.network.lm_head.weight, rows[:100])
    full = checkpoint.full_head(model)
    assert full is not None
    assert torch.equal(full, rows)


def test_where_all_fits_nothing_is_spread_and_the_target_may_draft_for_itself(
    target: Path, memory: Memory
) -> None:
    memory(10**9)
    models = load_pair(target, target, device_map="auto")
    assert models.target is models.drafter
    assert places(models.target) == ["cpu"] * (LAYERS + 1)


def test_what_cannot_be_is_refused_in_one_line(desk: Desk, target: Path, memory: Memory) -> None:
    def refused(drafter: Path, *options: object) -> str:
        return desk.refused(command((target, drafter), desk.texts, desk.out, *options))

    drafter = desk.pair[1]
    assert "--device-map: not allowed with argument --device" in refused(
        drafter, "--device", "cpu", *MAP
    )
    assert "--device-map: invalid choice: 'all'" in refused(drafter, "--device-map", "all")
    memory(SOME_LAYERS)
    answer = refused(target, *MAP)
    assert "is the target, which --device-map spreads over cpu, disk; needs a drafter" in answer
    memory(1000)
    answer = refused(drafter, *MAP)
    assert f"--target {target}: --device-map auto finds no room in memory for its emb" in answer
    desk.patch.setattr(arguments, "find_spec", lambda name: None if "accel" in name else name)
    answer = refused(drafter, *MAP)
    assert "needs accelerate: in the source folder, pip install" in answer
    assert "'.[devices]'" in answer
