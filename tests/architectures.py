"""Tiny models with random weights, one for each kind of architecture."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from packaging.version import Version

SIZE, CONTEXT, WINDOW = 61, 96, 8
FROM_5_24 = Version(transformers.__version__) >= Version("5.24")
SMALL: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
        | {"bos_token_id": None, "eos_token_id": None},
    ),
    "qwen2": ("Qwen2Config", SMALL | {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", GROUPED),
    "gemma": ("GemmaConfig", GROUPED),
    "neox": ("GPTNeoXConfig", SMALL),
    "cohere": ("CohereConfig", SMALL | {"logit_scale": 0.25}),
    # Layers that slide: all of them, or some.
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED | MIXED | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False},
    ),
    "gpt-oss": (
        "GptOssConfig",
        GROUPED
        | MIXED
        | {"num_local_experts": 3, "num_experts_per_tok": 2, "rope_parameters": ROPE},
    ),
    "qwen2-sliding": (
        "Qwen2Config",
        SMALL | MIXED | {"num_key_value_heads": 2, "use_sliding_window": True},
    ),
}
EAGER = {"gpt-oss"}  # has no other attention that takes a mask
SLIDING = ("mistral", "gemma3", "gpt-oss", "qwen2-sliding")
CONFIGS["gemma3-images"] = (
    "Gemma3Config",  # as the larger ones are, which read images too
    {
        "text_config": CONFIGS["gemma3"][1],
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 4,
        "image_token_index": 60,
        "boi_token_index": 59,
        "eoi_token_index": 58,
    },
)


def tiny(name: str = "llama", seed: int = 0, attention: str | None = None, **changes: Any) -> Any:
    """A randomly initialised model in float32, its weights large enough to matter."""
    if attention is None:
        attention = "eager" if name in EAGER else "sdpa"
    kind, arguments = CONFIGS.get(name, (name, {}))
    config = getattr(transformers, kind)(**arguments | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.dim() > 1 else 1.0)
    return model.eval()


def near(model: Any, noise: float) -> Any:
    """A drafter that often agrees with the model."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            spread = weight.std() if weight.numel() > 1 else 0.0
            weight.add_(noise * spread * torch.randn_like(weight))
    return other
