"""The demo's models as an engine loads them, the target with fewer layers.

One layer stands for each four of the demo's target, with four times its contribution, as these
were once made of one (`examples.demo.training.doubled`). It says less than the whole, but is a
language model all the same, and interpreted kernels take a quarter of the time.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.demo.shipped import SHIPPED
from rdk_cuda.files import write_json, write_whole

MADE = SHIPPED.parents[2] / "build" / "engines"
TARGET, EAGLE3 = MADE / "target", MADE / "eagle3"
EACH, STATE_LAYERS = 4, (1, 4, 7)  # of the eight, nearest to those that the head was trained on
GROWN = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def whole_drafter(directory: Path) -> Path:
    """The demo's drafter with the target's tokenizer, which it shares."""
    shutil.copytree(SHIPPED / "drafter", directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / "target" / name, directory / name)
    return directory


def with_even_heads(source: Path, directory: Path) -> Path:
    """The same function with an attention head more, of zeros, so that two ranks can share them."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    more = {name: config[name] + 1 for name in ("num_attention_heads", "num_key_value_heads")}
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if re.search(r"self_attn\.[qkv]_proj", name):
            weights[name] = torch.nn.functional.pad(weight, (0, 0, 0, config["head_dim"]))
        elif "self_attn.o_proj" in name:
            weights[name] = torch.nn.functional.pad(weight, (0, config["head_dim"]))
    return _make(source, directory, weights, **more)


def with_fewer_tokens(source: Path, directory: Path, size: int) -> Path:
    """The same without the last tokens."""
    weights = load_file(source / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & set(weights):
        weights[name] = weights[name][:size].contiguous()
    return _make(source, directory, weights, vocab_size=size)


def adapter(directory: Path, seed: int, rank: int = 8) -> Path:
    """A LoRA adapter of the target, drawn, that changes what it says."""
    draws, made = torch.Generator().manual_seed(seed), {}
    parts = ("q_proj", "o_proj", "down_proj")
    for name, weight in load_file(TARGET / "model.safetensors").items():
        if name.split(".")[-2] in parts:
            for side, shape in (("A", (rank, weight.shape[1])), ("B", (weight.shape[0], rank))):
                drawn = torch.randn(shape, generator=draws) * 0.15
                key = name.replace(".weight", f".lora_{side}.weight")
                made[f"base_model.model.{key}"] = drawn
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": parts}
    write_json(config, directory / "adapter_config.json")
    save_file(made, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def _make(source: Path, directory: Path, weights: dict[str, Any], **config: object) -> Path:
    """A checkpoint with other weights and settings."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        write_whole(directory / file.name, partial(shutil.copyfile, file))
    content = json.loads((source / "config.json").read_text(encoding="utf-8"))
    write_json(content | config, directory / "config.json")
    save = partial(save_file, weights, metadata={"format": "pt"})
    write_whole(directory / "model.safetensors", save)
    return directory


def _shallow_weights() -> dict[str, Any]:
    """Of the target: the third of each four layers."""
    made = {}
    for name, weight in load_file(SHIPPED / "target" / "model.safetensors").items():
        layer = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        if layer is None:
            made[name] = weight
        elif int(layer[1]) % EACH == EACH // 2:
            grown = weight * EACH if layer[2] in GROWN else weight
            made[f"model.layers.{int(layer[1]) // EACH}.{layer[2]}"] = grown
    return made


def _make_both() -> None:
    config = json.loads((SHIPPED / "target" / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"] // EACH
    _make(SHIPPED / "target", TARGET, _shallow_weights(), num_hidden_layers=layers)
    own = load_file(SHIPPED / "eagle3" / "model.safetensors")
    named = {"eagle_aux_hidden_state_layer_ids": list(STATE_LAYERS)}
    _make(SHIPPED / "eagle3", EAGLE3, own, eagle_config=named)


if not (EAGLE3 / "model.safetensors").is_file():
    _make_both()
