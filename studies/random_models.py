"""A target and a drafter of random weights: what passes cost does not depend on them."""

from __future__ import annotations

from typing import Any

import torch

SHAPES = {
    "tiny": {
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "serving": {  # Llama 3.1 8B
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
_PERIOD = 1_000_003  # of random weights; a billion different ones would take minutes


def random_llama(
    size: str, layers: int, device: torch.device, dtype: torch.dtype, **changes: int
) -> Any:
    """A Llama of random weights, which repeat with a period that no width divides."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape: dict[str, Any] = {**SHAPES[size], **changes}
    config = LlamaConfig(
        **shape, num_hidden_layers=layers, max_position_embeddings=4096, tie_word_embeddings=True
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.to_empty(device=device).tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    some = 0.02 * torch.randn(_PERIOD, generator=torch.Generator().manual_seed(0))
    for weight in model.parameters():
        if weight.dim() == 1:  # of a norm
            weight.data.fill_(1)
            continue
        for part in weight.data.view(-1).split(_PERIOD):
            part.copy_(some[: part.numel()])
    return model


def make_models(size: str, device: torch.device, layers: int) -> tuple[Any, Any]:
    """A random target of so many layers and a drafter of one, which has the target's head."""
    dtype = torch.bfloat16 if size == "serving" else torch.float32
    target = random_llama(size, layers, device, dtype)
    drafter = random_llama(size, 1, device, dtype, vocab_size=8)
    drafter.set_input_embeddings(target.get_input_embeddings())
    drafter.set_output_embeddings(target.get_output_embeddings())
    drafter.config.vocab_size = target.config.vocab_size
    return target, drafter
