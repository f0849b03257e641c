"""Refuses, by name, models that cannot roll the sequences of a batch back separately."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .attention import has_attention
from .library import cache_argument, not_served

_SEPARATELY = (
    "; needs explicit positions and a KV cache, or else the sequences of a batch cannot roll back "
    "separately"
)


def refuse_other_layers(model: Any, state_layers: Sequence[int]) -> None:
    """Refuse states of layers that a model does not have."""
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    if not all(0 <= layer <= depth + 1 for layer in state_layers):
        raise ValueError(
            f"HuggingFaceModel: state_layers is {list(state_layers)}; needs numbers from 0 to "
            f"{depth + 1}, as {type(model).__name__} has {depth} layers"
        )


def refuse_unsupported_model(model: Any) -> None:
    """Refuse what the library's own descriptions of a model already tell."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise not_served(model, "has no LM head; use AutoModelForCausalLM")
    if model.training:
        raise ValueError(f"HuggingFaceModel: {name} is in training mode; call model.eval() first")
    if config.is_encoder_decoder:
        raise not_served(model, "is an encoder-decoder; needs a causal model")
    needed = {cache_argument(model), "logits_to_keep"}
    needed |= {"position_ids"} if has_attention(model) else set()
    missing = sorted(needed - set(inspect.signature(model.forward).parameters))
    attention = config._attn_implementation
    reason = f"does not take {' and '.join(missing)}{_SEPARATELY}" if missing else None
    if config.return_dict is False:
        reason = "has return_dict=False in its config, with which its parts fail; set it to True"
    if any(callable(getattr(part, "weight", None)) for part in model.modules()):
        reason = "is quantised dynamically, so that the rows of a batch depend on each other; "
        reason += "needs weights alone to be quantised"
    if reason is None and attention not in ("sdpa", "eager"):
        reason = f"has attention {attention!r}; needs one that takes a 4D mask: load it with "
        reason += "attn_implementation='sdpa' or 'eager'"
    if reason:
        raise not_served(model, reason)
