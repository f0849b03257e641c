"""`Generate` with top-k and min-p left to `verify`, next to Transformers' processors."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch

from rdk_cuda.integrations.huggingface import Generate, generation_options

NEW_TOKENS, DRAFT_LENGTH = 12, 4
LIMITS: dict[str, dict[str, float]] = {
    "top-k 50": {"top_k": 50},
    "min-p 0.05": {"top_k": 0, "min_p": 0.05},
    "top-k 50, min-p 0.05": {"top_k": 50, "min_p": 0.05},
}


def generate_calls(
    size: int, batch: int, limits: str, dtype: torch.dtype
) -> dict[str, Callable[[int], object]]:
    """`model.generate` of a small random model with a vocabulary of this size.

    The bodies take hardly any time, so what is measured are heads, scores and sampling.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    target, drafter = (LlamaForCausalLM(config).to(dtype).eval() for _ in range(2))
    custom = Generate(drafter, draft_length=DRAFT_LENGTH, seed=0)
    prompts = torch.randint(3, size, (batch, 4))

    def call(given: dict[str, float]) -> object:
        return target.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
            custom_generate=custom,
            **given,
        )

    def processed(_: int) -> object:
        with patch.object(generation_options, "_is_plain", lambda warper: False):
            return call(LIMITS[limits])

    return {
        "ours": lambda _: call(LIMITS[limits]),
        "untruncated": lambda _: call({"top_k": 0}),
        "transformers": processed,
    }
