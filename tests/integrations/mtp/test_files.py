"""Multi-token heads are read from files as published, and compute what the libraries do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", minversion="5.24")
from transformers.modeling_layers import MtpModel

from rdk_cuda.integrations.eagle3 import CheckpointError
from rdk_cuda.integrations.mtp import is_mtp, read_mtp, read_mtp_checkpoint
from tests.tiny_llamas import llama

from .heads import HEADS, head_of, load, make, publish, reference

IDS = torch.tensor([[5, 3, 1, 7, 2, 9, 11, 4, 8, 13]])
SECOND = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_computes_what_its_family_s_loader_does(name: str, tmp_path: Path) -> None:
    target, layout = make(name), HEADS[name][1]
    own = head_of(target)
    publish(tmp_path, target, own, name=name)
    found = read_mtp(tmp_path, target)
    for (key, weight), other in zip(found.named_parameters(), own.parameters(), strict=True):
        assert torch.equal(weight, other) or "embed" in key, key
    assert torch.equal(found.lm_head.weight, own.lm_head.weight)
    states = target.get_decoder()(IDS).last_hidden_state[:, :-1]
    expected = reference(own, layout, IDS[:, 1:], states)
    hidden = found(IDS[:, 1:], states)
    assert (found.norm(hidden) - expected).norm() < 1e-6 * expected.norm()
    flipped = reference(
        own, layout._replace(state_first=not layout.state_first), IDS[:, 1:], states
    )
    assert not torch.allclose(flipped, expected, atol=0.1)
    read_mtp_checkpoint(tmp_path, target).save_pretrained(tmp_path / "saved")
    assert is_mtp(tmp_path / "saved")
    assert not is_mtp(tmp_path)
    again = read_mtp_checkpoint(tmp_path / "saved", target)
    assert again.dtype == torch.float32
    assert again.shared == (set() if name == "step3p7" else {"lm_head.weight"})
    for (key, weight), other in zip(
        found.named_parameters(), again.network.parameters(), strict=True
    ):
        assert torch.equal(weight, other) or "embed" in key, key
    assert torch.equal(again.full_head(target), found.lm_head.weight)
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert sum(map(torch.numel, stored.values())) < 2e5
    raw = name in ("step3p7", "ernie4_5_moe")
    handed = hidden if raw else found.norm(hidden)
    assert torch.equal(found.handed_on(hidden), handed)


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "bailing_hybrid", "mellum"])
def test_first_drafts_are_those_of_the_library_s_own_network(name: str) -> None:
    changes: dict[str, Any] = {"num_mtp_layers": 1}
    if name == "bailing_hybrid":
        changes |= {"mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["sparse"]}
    target = make(name, **changes)
    own = head_of(target)
    theirs = MtpModel(target, 1).eval()
    (layer,) = theirs.layers
    layer.mtp_block.load_state_dict(own.decoder.layers[0].state_dict())
    pairs = {"enorm": "embedding_norm", "hnorm": "state_norm", "post_norm": "norm", "eh_proj": "fc"}
    for part, name in pairs.items():
        layer.get_submodule(part).load_state_dict(own.get_submodule(name).state_dict())
    states = target.get_decoder()(IDS).last_hidden_state[:, :-1]
    positions = torch.arange(IDS.shape[1] - 1)[None]
    with torch.no_grad():
        inputs = {"input_ids": IDS[:, 1:], "mtp_cache": None, "position_ids": positions}
        _, expected, _ = theirs(last_hidden_states=states, attention_mask=None, **inputs)
        found = own.logits(own(IDS[:, 1:], states))[:, -1:]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_class_that_also_reads_images_has_its_head_beside_the_text_model(tmp_path: Path) -> None:
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    vision |= {"out_hidden_size": 32, "num_position_embeddings": 16}
    from tests.recurrent_models import SMALL, TYPES, recurrent

    text = SMALL | TYPES["qwen3_5_text"]
    both = {"text_config": text, "vision_config": vision}
    target = recurrent("qwen3_5", kind="AutoModelForImageTextToText", **both)
    own = head_of(target)
    publish(tmp_path, target, own, name="qwen3_5_text")
    assert any(
        ".language_model." in name for name in load_file(tmp_path / SECOND.replace("2-", "1-", 1))
    )
    loaded = load(tmp_path)
    states = loaded.get_decoder()(IDS).last_hidden_state
    expected = target(IDS, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(states, expected)
    found = read_mtp(tmp_path, loaded)
    assert torch.equal(found(IDS, states), own(IDS, states))


def broken(folder: Path, change: Any) -> None:
    tensors = load_file(folder / SECOND)
    save_file(change(tensors), folder / SECOND)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    places = {name: file for name, file in index["weight_map"].items() if file != SECOND}
    index["weight_map"] = places | dict.fromkeys(load_file(folder / SECOND), SECOND)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without(*parts: str) -> Any:
    return lambda tensors: (
        {
            name: weight
            for name, weight in tensors.items()
            if not any(part in name for part in parts)
        }
        | {"other": torch.zeros(1)}
    )


BROKEN = {
    "absent": (without("mtp."), r"lacks mtp\.pre_fc_norm_embedding\.weight, .*mtp\.layers\.0\.\*"),
    "no map": (without("mtp.fc"), r"lacks mtp\.fc\.weight, as copies"),
    "no query": (without("q_proj"), r"lacks \['layers\.0\.self_attn\.q_proj\.weight'\]"),
    "one more": (
        lambda tensors: tensors | {"mtp.layers.0.self_attn.other.weight": torch.zeros(3)},
        r"has \['layers\.0\.self_attn\.other\.weight'\] besides",
    ),
    "packed": (
        lambda tensors: (
            tensors | {"mtp.fc.weight": tensors["mtp.fc.weight"].to(torch.float8_e4m3fn)}
        ),
        r"1 tensors are quantised, as mtp\.fc\.weight",
    ),
    "scaled": (
        lambda tensors: tensors | {"mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1)},
        "quantised, as mtp.layers.0.mlp.up_proj.weight_scale_inv",
    ),
    "narrow map": (
        lambda tensors: tensors | {"mtp.fc.weight": torch.zeros(32, 32)},
        r"map has shape \[32, 32\] and dtype torch.float32; needs \[32, 64\]",
    ),
    "biased map": (
        lambda tensors: tensors | {"mtp.fc.bias": torch.zeros(32)},
        r"mtp\.fc\.bias has no place.*needs maps and norms without a bias",
    ),
    "biased norm": (
        lambda tensors: tensors | {"mtp.norm.bias": torch.zeros(32)},
        r"mtp\.norm\.bias has no place",
    ),
    "twice": (
        lambda tensors: tensors | {"model.mtp.fc.weight": tensors["mtp.fc.weight"].clone()},
        r"has a second mtp\.fc\.weight",
    ),
    "NaN": (
        lambda tensors: tensors | {"mtp.norm.weight": torch.full([32], torch.nan)},
        r"mtp\.norm\.weight has NaN or inf",
    ),
    "narrow query": (
        lambda tensors: tensors | {"mtp.layers.0.self_attn.q_proj.weight": torch.zeros(4, 32)},
        r"no layer of Qwen3_5TextModel can be made",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_files_without_a_whole_head_are_refused_by_what_is_missing(
    kind: str, tmp_path: Path
) -> None:
    target = make("qwen3_5_text")
    publish(tmp_path, target, head_of(target), name="qwen3_5_text")
    change, reason = BROKEN[kind]
    broken(tmp_path, change)
    with pytest.raises(CheckpointError, match=reason):
        read_mtp(tmp_path, target)


def test_other_families_and_pickles_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"of type 'llama'.*needs one of qwen3_next, "):
        read_mtp(tmp_path, llama(20))
    target = make("qwen3_next")
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors"):
        read_mtp(tmp_path, target)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"may be a pickle; needs the target's safetensors"):
        read_mtp(tmp_path, target)
    (tmp_path / "model.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(CheckpointError, match="no complete safetensors file"):
        read_mtp(tmp_path, target)
