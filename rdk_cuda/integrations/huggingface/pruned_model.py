"""A Hugging Face drafter with a small LM head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["apply_head"]


def apply_head(model: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    """Replace the LM head of a causal language model, in place, by a small one.

    The forward pass then gives logits `[..., V_d]`, processed as the model processes its logits.
    The input embedding keeps all V_t rows, since the drafter still reads every token. Embeddings
    are no longer tied, and the configuration says so; its `vocab_size` stays V_t.

    This is for models in memory. `AutoModelForCausalLM` cannot load such a model from files,
    because a configuration has one `vocab_size` for both embedding and head; use `save_drafter`.
    Dynamic tokens need the full head: for them leave the model as it is, and give the small head to
    `HuggingFaceModel(model, head=...)`.

    Args:
        model: from `AutoModelForCausalLM`, embeddings tied or not.
        weight: `[V_d, d]`, as from `rdk_cuda.drafter.prune_head`. Copied in the dtype and to
            the device of the head that it replaces.
        bias: `[V_d]`, or None.

    Raises:
        TypeError: a model without an LM head, or with one that is no matrix of floats.
        ValueError: shapes that do not fit.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> apply_head(model, model.lm_head.weight[:10])
        >>> model(torch.tensor([[49, 3]])).logits.shape
        torch.Size([1, 2, 10])
    """
    name, old = type(model).__name__, _head(model)
    width = old.weight.shape[1]
    if weight.dim() != 2 or weight.shape[1] != width or not weight.is_floating_point():
        raise ValueError(
            f"apply_head: weight has shape {list(weight.shape)} and dtype {weight.dtype}; needs "
            f"floating-point [V_d, d] with d = {width}, the width of the head of {name}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"apply_head: bias has shape {list(bias.shape)}; needs [V_d] = [{weight.shape[0]}]"
        )
    small = torch.nn.utils.skip_init(
        torch.nn.Linear,
        *(width, weight.shape[0]),
        bias=bias is not None,
        device=old.weight.device,
        dtype=old.weight.dtype,
    )
    with torch.no_grad():
        small.weight.copy_(weight)
        if bias is not None:
            small.bias.copy_(bias)
    # Or the next `tie_weights` would put the embedding back in place of the head.
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.set_output_embeddings(small.train(old.training))
    if model.get_output_embeddings() is not small:
        raise TypeError(f"apply_head: {name} does not let its LM head be replaced")
    model.tie_weights()


def _head(model: Any) -> Any:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise TypeError(
            f"apply_head: the LM head of {type(model).__name__} is {type(head).__name__}; needs a "
            "causal language model whose head is one matrix of floats (not a quantized one)"
        )
    return head
