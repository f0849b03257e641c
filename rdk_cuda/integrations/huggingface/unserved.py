"""Refuses, by name, models that cannot roll the sequences of a batch back separately."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .attention import has_attention
from .library import cache_argument, not_served


def refuse_other_layers(model: Any, state_layers: Sequence[int]) -> None:
    """Refuse states of layers that a model does not have."""
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    if not all(0 <= layer <= depth for layer in state_layers):
        raise ValueError(
            f"HuggingFaceModel: state_layers is {list(state_layers)}; needs numbers from 0 to "
            f"{depth}, as {type(model).__name__} has {depth} layers"
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
    if has_attention(model):
        needed.add("position_ids")
    missing = sorted(needed - set(inspect.signature(model.forward).parameters))
    reason = f"does not take {' and '.join(missing)}" if missing else None
    if getattr(config, "alibi", False):
        reason = "uses ALiBi, which measures distances in slots"
    if "local" in getattr(config, "attention_layers", ()):
        reason = "has local attention layers, which measure their window in slots"
    if config.return_dict is False:
        raise not_served(
            model, "has return_dict=False in its config, with which its parts fail; set it to True"
        )
    if any(callable(getattr(part, "weight", None)) for part in model.modules()):
        raise not_served(
            model,
            "is quantised dynamically, so that a sequence's logits depend on the others of its "
            "batch; needs weights alone to be quantised",
        )
    if reason:
        raise not_served(
            model,
            f"{reason}; needs explicit positions and a KV cache, or else the sequences of a batch "
            "cannot roll back separately",
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise not_served(
            model,
            f"has attention {config._attn_implementation!r}; needs one that takes a 4D mask: load "
            "it with attn_implementation='sdpa' or 'eager'",
        )
