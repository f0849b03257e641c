"""Drafters in both published formats give the numbers that their own projects' code gives."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rdk_cuda.integrations.eagle3 import (
    Eagle3Drafter,
    Eagle3Network,
    is_checkpoint,
    read_checkpoint,
)
from tests.tiny_llamas import llama

PUBLISHED = Path(__file__).parent / "published"
FORMATS = ("eagle", "eagle2", "speculators_llama", "speculators_qwen3")


@pytest.fixture(params=FORMATS)
def published(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Tensor]]:
    folder = PUBLISHED / request.param
    return folder, load_file(folder / "expected.safetensors")


def target(embedding: Tensor | None = None, head: Tensor | None = None) -> Any:
    model = llama(40, layers=8)
    if embedding is not None:
        model.get_input_embeddings().weight.data.copy_(embedding)
    if head is not None:
        model.get_output_embeddings().weight.data.copy_(head)
    return model


@torch.no_grad()
def logits_along_a_draft(network: Eagle3Network, expected: dict[str, Tensor]) -> Tensor:
    cache, seen = DynamicCache(), expected["ids"].shape[1]
    outputs = [network(expected["ids"], network.fuse(expected["states"]), cache=cache)]
    for place, token in enumerate(expected["drafted"], start=seen):
        states = network.handed_on(outputs[-1][:, -1:])
        position, mask = torch.tensor([[place]]), torch.zeros(1, 1, 1, place + 1)
        outputs.append(network(token.view(1, 1), states, position, mask, cache))
    return network.logits(torch.cat(outputs, 1))


def test_logits_are_those_of_the_projects_own_code(
    published: tuple[Path, dict[str, Tensor]],
) -> None:
    folder, expected = published
    checkpoint = read_checkpoint(folder, target(expected.get("embedding"), expected.get("head")))
    assert torch.equal(checkpoint.vocabulary.draft_ids, expected["kept"])
    logits = logits_along_a_draft(checkpoint.network, expected)
    torch.testing.assert_close(logits, expected["logits"], rtol=1e-5, atol=1e-5)


def test_what_is_read_is_written_again_without_the_target_s_weights(
    published: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    folder, expected = published
    model = target(expected.get("embedding"), expected.get("head"))
    checkpoint = read_checkpoint(folder, model)
    checkpoint.save_pretrained(tmp_path)
    assert is_checkpoint(folder)
    assert is_checkpoint(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert ("embed_tokens.weight" in written) == ("embed_tokens.weight" not in checkpoint.shared)
    assert {tensor.dtype for name, tensor in written.items() if "2" not in name} == {
        checkpoint.dtype
    }
    again = read_checkpoint(tmp_path, model)
    assert torch.equal(again.vocabulary.draft_ids, expected["kept"])
    assert again.shared == checkpoint.shared
    logits = logits_along_a_draft(again.network, expected)
    torch.testing.assert_close(logits, expected["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "flag"),
    [("speculators_llama", "norm_before_residual"), ("speculators_qwen3", "norm_output")],
)
def test_control_another_variant_is_told_apart(name: str, flag: str) -> None:
    expected = load_file(PUBLISHED / name / "expected.safetensors")
    network = read_checkpoint(PUBLISHED / name, target()).network
    network.config = replace(network.config, **{flag: False})
    assert not torch.allclose(logits_along_a_draft(network, expected), expected["logits"], atol=0.1)


def test_the_target_s_layers_are_named_by_the_checkpoint_or_as_eagle_chooses_them() -> None:
    named = read_checkpoint(PUBLISHED / "speculators_llama", target()).network.config
    assert named.layers_read(8) == (1, 2, 4)
    assert read_checkpoint(PUBLISHED / "eagle", target()).network.config.layers_read(28) == (
        2,
        14,
        25,
    )


def test_a_network_has_the_target_s_dtype_and_is_ready_to_use() -> None:
    network = read_checkpoint(PUBLISHED / "eagle", target().bfloat16()).network
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
    assert not network.training


def test_without_a_head_the_target_s_rows_are_used(tmp_path: Path) -> None:
    folder = shutil.copytree(PUBLISHED / "speculators_llama", tmp_path / "drafter")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    model = target()
    checkpoint = read_checkpoint(folder, model)
    rows = model.get_output_embeddings().weight[checkpoint.vocabulary.draft_ids]
    assert torch.equal(checkpoint.network.lm_head.weight, rows)


def eagle2() -> tuple[Eagle3Network, dict[str, Tensor]]:
    expected = load_file(PUBLISHED / "eagle2" / "expected.safetensors")
    model = target(expected["embedding"], expected["head"])
    return read_checkpoint(PUBLISHED / "eagle2", model).network, expected


def test_eagle_2_s_greedy_drafts_are_those_of_its_own_tree_with_one_branch() -> None:
    network, expected = eagle2()
    drafter = Eagle3Drafter(network, target_layers=8)
    drafter.reset(1)
    drafter.observe([expected["states"][0]])
    new, drafted = [5, *expected["ids"][0].tolist()], []
    for _ in expected["greedy"]:
        new = drafter.feed([new], [1]).logits[0].argmax(-1).tolist()
        drafted += new
    assert drafted == expected["greedy"].tolist()


def swapped(network: Eagle3Network) -> None:
    network.fc.weight.data = network.fc.weight.data.roll(16, dims=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda network: setattr(network.layers[0], "input_layernorm", LlamaRMSNorm(16)),
        lambda network: setattr(network, "norm", LlamaRMSNorm(16)),
        lambda network: setattr(network, "handed_on", LlamaRMSNorm(16).forward),
        lambda network: network.fc.bias.data.zero_(),
        swapped,
    ],
    ids=["input norm", "last norm", "normalised state", "no bias", "state first"],
)
def test_control_another_variant_of_eagle_2_is_told_apart(change: Any) -> None:
    network, expected = eagle2()
    change(network)
    logits = logits_along_a_draft(network, expected)
    assert not torch.allclose(logits, expected["logits"], atol=0.02)
