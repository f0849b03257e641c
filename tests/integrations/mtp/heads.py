"""Tiny targets with a multi-token head in their files, as their families publish them."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.mtp import FAMILIES, MtpNetwork
from rdk_cuda.integrations.mtp.families import family_of
from rdk_cuda.integrations.mtp.network import layer_config
from tests.recurrent_models import INDEXED, SMALL, recurrent


class Layout(NamedTuple):
    """Names in the files, by the loaders of vLLM, with the number of a target's layers as L."""

    embedding_norm: str
    state_norm: str
    map: str
    norm: str
    layer: str
    state_first: bool = False


QWEN = Layout(
    "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm", "mtp.layers.0."
)
DEEPSEEK = Layout(
    "model.layers.L.enorm",
    "model.layers.L.hnorm",
    "model.layers.L.eh_proj",
    "model.layers.L.shared_head.norm",
    "model.layers.L.",
)
MLA: dict[str, Any] = {name: own for name, own in INDEXED.items() if not name.startswith("index_")}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}
PLAIN = EXPERTS | {"num_experts": 4, "head_dim": 8}
SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
# Of each target: how it differs from the tiny ones of other tests, and where its head is.
HEADS: dict[str, tuple[dict[str, Any], Layout]] = {
    "qwen3_5_text": ({}, QWEN),
    "qwen3_next": ({}, QWEN),
    "mellum": (PLAIN | SLIDING | {"num_mtp_layers": 1}, QWEN),
    "exaone4": ({"head_dim": 8} | SLIDING, QWEN),
    "deepseek_v3": (MLA | {"num_mtp_layers": 1}, DEEPSEEK),
    "deepseek_v32": ({}, DEEPSEEK),
    "glm4_moe": (ROUTED | {"head_dim": 8, "first_k_dense_replace": 1}, DEEPSEEK),
    "bailing_hybrid": ({}, DEEPSEEK),
    "hy_v3": (
        PLAIN | {"first_k_dense_replace": 1},
        DEEPSEEK._replace(norm="model.layers.L.final_layernorm"),
    ),
    "step3p7": (
        {
            "head_dim": 8,
            "num_nextn_predict_layers": 2,
            "sliding_window": 6,
            "moe_intermediate_size": 16,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "share_expert_dim": 16,
        },
        DEEPSEEK._replace(norm="model.layers.L.transformer.shared_head.norm"),
    ),
    "mimo": (
        {},
        Layout(
            "model.mtp_layers.0.token_layernorm",
            "model.mtp_layers.0.hidden_layernorm",
            "model.mtp_layers.0.input_proj",
            "model.mtp_layers.0.final_layernorm",
            "model.mtp_layers.0.",
            state_first=True,
        ),
    ),
    "mimo_v2_flash": (
        ROUTED
        | {"head_dim": 8, "v_head_dim": 8, "swa_num_attention_heads": 4, "swa_head_dim": 8}
        | {"swa_num_key_value_heads": 2, "swa_v_head_dim": 8, "sliding_window": 6}
        | {"layer_types": ["full_attention", "sliding_attention"] * 2}
        | {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
        Layout(
            "model.mtp.layers.0.enorm",
            "model.mtp.layers.0.hnorm",
            "model.mtp.layers.0.eh_proj",
            "model.mtp.layers.0.final_layernorm",
            "model.mtp.layers.0.",
        ),
    ),
    "ernie4_5_moe": (
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1}
        | {"tie_word_embeddings": False},
        Layout(
            "model.mtp_emb_norm.0",
            "model.mtp_hidden_norm.0",
            "model.mtp_linear_proj.0",
            "",
            "model.mtp_block.0.",
        ),
    ),
    "nemotron_h": (
        {},
        Layout(
            "mtp.layers.0.enorm",
            "mtp.layers.0.hnorm",
            "mtp.layers.0.eh_proj",
            "mtp.layers.1.final_layernorm",
            "mtp.layers.",
        ),
    ),
}


class _MiMoConfig(Qwen2Config):
    model_type = "mimo"


def make(name: str, **changes: Any) -> Any:
    """A target with random weights."""
    own = HEADS[name][0] | changes
    if name == "step3p7":  # which also reads images
        vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
        parts = {"text_config": SMALL | own, "vision_config": vision}
        return recurrent(name, kind="AutoModelForImageTextToText", **parts)
    if name != "mimo":
        return recurrent(name, **own)
    torch.manual_seed(0)
    return Qwen2ForCausalLM(_MiMoConfig(**SMALL | own, initializer_range=0.1)).eval()


@torch.no_grad()
def head_of(target: Any, number: int = 0, seed: int = 3) -> MtpNetwork:
    """A layer of a head for a target, of random weights."""
    family = family_of(target.config.get_text_config(decoder=True).model_type)
    torch.manual_seed(seed + number)
    own = weights_of(type(target.get_decoder())(layer_config(target, family, number)))
    head = None
    if family is FAMILIES["Step 3.5"]:
        head = torch.randn_like(target.get_output_embeddings().weight)
    network = MtpNetwork(own.eval(), target, family, head=head)
    return weights_of(network)


def weights_of(module: Any) -> Any:
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight.data, std=0.3)
        elif "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    return module


def tensors_of(network: MtpNetwork, layout: Layout, layers: int, number: int = 0) -> dict[str, Any]:
    """By their names in the files."""
    here = layout._replace(
        **{
            part: name.replace(".L.", f".{layers + number}.").replace(
                ".layers.0.", f".layers.{number}."
            )
            if layout.layer != "mtp.layers."
            else name
            for part, name in layout._asdict().items()
            if isinstance(name, str)
        }
    )
    with TemporaryDirectory() as folder:
        network.decoder.save_pretrained(folder)  # an expert has tensors of its own there
        inside = load_file(Path(folder) / "model.safetensors")
    found = {}
    for name, weight in inside.items():
        if not name.startswith(("embed", "norm", "model.language_model.embed")):
            rest = name.split("layers.", 1)[1]
            rest = rest if layout.layer == "mtp.layers." else rest.split(".", 1)[1]
            if "mtp.layers.0.enorm" in layout.embedding_norm and layout.layer != "mtp.layers.":
                rest = rest.replace("post_attention_layernorm", "pre_mlp_layernorm")
            found[here.layer + rest] = weight
    found[f"{here.embedding_norm}.weight"] = network.embedding_norm.weight
    found[f"{here.state_norm}.weight"] = network.state_norm.weight
    found[f"{here.map}.weight"] = network.fc.weight
    if here.norm:
        found[f"{here.norm}.weight"] = network.norm.weight
    if "transformer" in here.norm:
        found[here.norm.replace("norm", "output") + ".weight"] = network.lm_head.weight
    if layout is DEEPSEEK:  # copies of the target's
        found[here.layer + "embed_tokens.weight"] = network._shared[0].weight
        found[here.layer + "shared_head.head.weight"] = network.lm_head.weight
    return {name: weight.detach().clone() for name, weight in found.items()}


def publish(folder: Path, target: Any, *networks: MtpNetwork, name: str) -> None:
    """The files of a target, in two shards with an index, the head in the second."""
    target.save_pretrained(folder)
    layers = target.config.get_text_config(decoder=True).num_hidden_layers
    heads: dict[str, Tensor] = {}
    for number, network in enumerate(networks):
        heads |= tensors_of(network, HEADS[name][1], layers, number)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (folder / "model.safetensors").rename(folder / first)
    save_file(heads, folder / second, {"format": "pt"})
    places = dict.fromkeys(load_file(folder / first), first) | dict.fromkeys(heads, second)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@torch.no_grad()
def reference(network: MtpNetwork, layout: Layout, tokens: Tensor, states: Tensor) -> Tensor:
    """What the head's last norm returns, in float64, layer by layer."""
    import copy

    embedding = network._shared[0].weight.double()[tokens]
    network = copy.deepcopy(network).double()
    halves = [network.embedding_norm(embedding), network.state_norm(states.double())]
    hidden = torch.cat(halves[::-1] if layout.state_first else halves, -1) @ network.fc.weight.T
    config, n = network.decoder.config, tokens.shape[1]
    config._experts_implementation = "eager"  # others take no float64
    positions = torch.arange(n)[None]
    distance = positions.T - positions
    hidden_from = distance < 0
    kind = (getattr(config, "layer_types", None) or [""])[0]
    if kind == "sliding_attention":
        hidden_from |= distance >= config.sliding_window
    mask = torch.zeros(1, 1, n, n).double().masked_fill(hidden_from, -1e300)
    rotary, around = getattr(network.decoder, "rotary_emb", None), {}
    if rotary is not None:
        by_type = "layer_type" in inspect.signature(rotary.forward).parameters
        extra = {"layer_type": kind} if by_type else {}
        around["position_embeddings"] = rotary(hidden, position_ids=positions, **extra)
    for layer in network.decoder.layers:
        hidden = layer(hidden, attention_mask=mask, position_ids=positions, **around)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    normed: Tensor = network.norm(hidden)
    return normed


def load(folder: Path) -> Any:
    """The target, as `AutoModelForCausalLM` loads it: without its head."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@cache
def parts(name: str, size: int = 61) -> tuple[HuggingFaceModel, MtpNetwork]:
    target = make(name, vocab_size=size)
    network = head_of(target)
    if not network.family.norm:  # nothing else keeps its head's rows from being nearly certain
        for weight in network.parameters():
            weight.mul_(0.3 if weight.dim() > 1 else 1.0)
    spread = 0.3 if size < 12 else 0.15
    torch.nn.init.normal_(target.get_output_embeddings().weight.data, std=spread)
    return HuggingFaceModel(target, state_layers=(network.target_layers,)), network
