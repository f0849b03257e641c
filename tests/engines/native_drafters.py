"""Tiny targets whose drafters come with them: a multi-token head in MiMo's layout, and DFlash's.

And one that has three positions a token (M-RoPE), as models of images have, with a small drafter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.drafter import PrunedDrafter, prune_head
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface.saved_drafter import MODEL, PRUNED, SETTINGS

SIZE, WIDTH = 64, 64
_SIZES: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def write_multi_token_target(directory: Path) -> Any:
    """Write it, with random weights, and return what Transformers has of it: all but its head."""
    model = _written(Qwen2ForCausalLM(Qwen2Config(**_SIZES)), directory)
    weights = load_file(directory / "model.safetensors")
    layer, own = "model.layers.1.", "model.mtp_layers.0."
    for name in list(weights):
        if name.startswith(layer):
            weights[own + name.removeprefix(layer)] = weights[name].clone()
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{own}{name}.weight"] = torch.ones(WIDTH)
    weights[f"{own}input_proj.weight"] = torch.cat([torch.eye(WIDTH) / 2, torch.eye(WIDTH)], 1)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    more = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    write_json(model.config.to_dict() | more, directory / "config.json")
    return model


def write_block_target(directory: Path, drafter: Path) -> Any:
    """Write a target, and a DFlash drafter of one layer beside it, which reads states of both."""
    model = _written(Qwen3ForCausalLM(Qwen3Config(**_SIZES)), directory)
    weights = load_file(directory / "model.safetensors")
    layer = "model.layers.1."
    own = {
        name.replace(layer, "layers.0."): weight.clone()
        for name, weight in weights.items()
        if name.startswith(layer)
    }
    for name in ("norm", "hidden_norm"):
        own[f"{name}.weight"] = torch.ones(WIDTH)
    own["fc.weight"] = torch.cat([torch.eye(WIDTH)] * 2, 1) / 2
    drafter.mkdir()
    save_file(own, drafter / "model.safetensors", metadata={"format": "pt"})
    more = {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "draft_vocab_size": SIZE,
        "block_size": 4,
        "dflash_config": {"mask_token_id": SIZE - 1, "target_layer_ids": [0, 1]},
    }
    write_json(model.config.to_dict() | more, drafter / "config.json")
    return model


def write_image_target(directory: Path, drafter: Path) -> Any:
    """Write a target that reads images, too, and a drafter: its text's layers, a little changed."""
    text = {**_SIZES, "rope_parameters": {"rope_type": "default", "mrope_section": [8, 4, 4]}}
    del text["head_dim"]
    vision = {"depth": 1, "hidden_size": 32, "out_hidden_size": WIDTH, "num_heads": 2}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config={**vision, "intermediate_size": 32},
        image_token_id=SIZE - 1,
        video_token_id=SIZE - 2,
        tie_word_embeddings=False,
    )
    model = _written(Qwen2_5_VLForConditionalGeneration(config), directory)
    own = Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=False)).eval()
    own.model.load_state_dict(model.model.language_model.state_dict())
    own.lm_head.load_state_dict(model.lm_head.state_dict())
    with torch.no_grad():
        for layer in own.model.layers:
            layer.mlp.down_proj.weight *= 0.9
    own.save_pretrained(drafter)
    return model


TORCHVISION = {
    "sitecustomize.py": "import transformers.utils as own\n"
    "own.is_torchvision_available = lambda: False\n"
    "own.import_utils.is_torchvision_available = own.is_torchvision_available\n",
    "torchvision/__init__.py": "",
    "torchvision/transforms/__init__.py": "def __getattr__(name): return object\n",
    "torchvision/transforms/v2/__init__.py": "from . import functional\n",
    "torchvision/transforms/v2/functional.py": "",
}
"""Files that stand in its place where only text is served: vLLM imports it for images."""


def _written(model: Any, directory: Path) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.13, generator=generator)
    model.eval().save_pretrained(directory)
    return model


def write_trimmed(directory: Path, model: Any) -> None:
    """Half of the target's head, virtual tokens for the others, and dynamic ones."""
    vocabulary = Vocabulary(range(0, SIZE, 2), SIZE)
    clusters = torch.arange(SIZE) % 3
    clusters[vocabulary.draft_ids] = -1
    affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.ones(SIZE))
    head = prune_head(model.lm_head.weight.detach(), None, vocabulary, virtual=affinity)
    source = RecentTokens(vocabulary, width=8, window=32)
    (directory / MODEL).mkdir(parents=True)
    PrunedDrafter(vocabulary, affinity, *head, dynamic_tokens=source).save(directory / PRUNED)
    settings = {"format": "rdk_cuda.drafter", "format_version": "1", "settings": {}}
    write_json(settings, directory / SETTINGS)
