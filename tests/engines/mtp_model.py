"""A tiny target with a head for more tokens of its own, as MiMo's checkpoints have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.drafter import PrunedDrafter, prune_head
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface.saved_drafter import MODEL, PRUNED, SETTINGS

SIZE = 64


def write_target(directory: Path) -> Any:
    """Write it, with random weights, and return what Transformers reads of it: all but its head."""
    config = Qwen2Config(
        vocab_size=SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.dim() > 1 else 1.0)
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    layer, own = "model.layers.1.", "model.mtp_layers.0."
    for name in list(weights):
        if name.startswith(layer):
            weights[own + name.removeprefix(layer)] = weights[name].clone()
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{own}{name}.weight"] = torch.ones(64)
    weights[f"{own}input_proj.weight"] = torch.cat([torch.eye(64) / 2, torch.eye(64)], 1)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    more = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    write_json(config.to_dict() | more, directory / "config.json")
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
