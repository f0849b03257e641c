"""Llamas of random weights, no larger than tests need them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def shape(size: int, width: int = 16, layers: int = 1, heads: int = 2, **more: Any) -> LlamaConfig:
    given = {"intermediate_size": 16} | more
    given |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return LlamaConfig(vocab_size=size, **given)


def llama(size: int, *, seed: int | None = None, **of: Any) -> Any:
    """With a seed the same one each time."""
    if seed is not None:
        torch.manual_seed(seed)
    return LlamaForCausalLM(shape(size, **of)).eval()
