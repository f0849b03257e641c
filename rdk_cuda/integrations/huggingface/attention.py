"""How the layers of a model look back, how far, and how long its sequences may be."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from transformers import DynamicCache

from .library import not_served

# Classes of layers in a cache, and the types that configurations name.
_SERVED = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer", "DynamicIndexedLayer"}
_SERVED |= {"attention", "full_attention", "indexed_attention", "mlp", "moe", "sliding_attention"}
_RECURRENT = {"LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer"}
_RECURRENT_TYPES = {"conv", "hybrid", "linear_attention"}


class Layers(NamedTuple):
    """The layers of a model.

    Attributes:
        sliding: for each layer of the cache, whether its attention slides.
        window: how many tokens a sliding layer sees, the newest included; None without one.
        recurrent: the numbers of layers that keep recurrent or convolution states.
        by_slots: how a gap between slots would matter; None if it would not.
    """

    sliding: list[bool]
    window: int | None
    recurrent: tuple[int, ...] = ()
    by_slots: str | None = None


def layers_of(model: Any) -> Layers:
    """From the model's configuration."""
    layers = _in_cache(model)
    kinds = {type(layer).__name__ for layer in layers}
    text = model.config.get_text_config(decoder=True)
    named = list(getattr(text, "layer_types", None) or ())
    types = set(named)
    recurrent = [
        number
        for number, layer in enumerate(layers)
        if type(layer).__name__ in _RECURRENT
        and hasattr(layer, "number_of_states")
        and not {"mlp", "moe"}.intersection(named[number : number + 1])  # as 5.20 has them
    ]
    # Old releases have a DynamicLayer also for layers of other types, which they do not know.
    other = (kinds | types) - _SERVED - (_RECURRENT | _RECURRENT_TYPES if recurrent else set())
    if other & (_RECURRENT | _RECURRENT_TYPES):
        raise not_served(
            model,
            f"keeps its past as {' and '.join(sorted(other))}; needs a newer release, whose caches "
            "have states (LinearAttentionLayer)",
        )
    if any("ReferenceSlidingWindow" in kind for kind in kinds):
        reason = "has reference_sliding_attention, whose window begins where its first pass ends"
        raise not_served(model, reason)
    windows = [getattr(layer, "sliding_window", None) for layer in layers]
    different = sorted({window for window in windows if window is not None})
    by_slots = None
    if other:
        by_slots = f"layers of type {' and '.join(sorted(other & types or other))}"
    elif len(different) > 1:
        by_slots = f"sliding windows of {different} tokens"
    elif getattr(model.config, "alibi", False):
        by_slots = "ALiBi"
    elif "local" in getattr(model.config, "attention_layers", ()):
        by_slots = "local attention"
    elif getattr(text, "index_kpool", None):
        by_slots = "an indexer that pools its keys"
    sliding = [window is not None for window in windows]
    return Layers(sliding, different[0] if different else None, tuple(recurrent), by_slots)


def has_attention(model: Any) -> bool:
    """Whether any layer of a model has keys and values, so that its tokens need positions."""
    return any(hasattr(layer, "keys") for layer in _in_cache(model))


def _in_cache(model: Any) -> list[Any]:
    try:
        layers: list[Any] = DynamicCache(config=model.config).layers
    except KeyError as error:
        raise not_served(model, f"has no cache for its layers of type {error}") from error
    return layers


def is_seen(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Which keys lie in a query's window, `[B, W, S]` bool, for positions `[B, W]` and `[B, S]`."""
    return keys[:, None, :] > queries[:, :, None] - window


def first_seen(alive: Tensor, real: Tensor, positions: Tensor, window: int) -> int:
    """How many slots at the front no query of a pass can see through its window.

    Args:
        alive: `[B, S]` bool, which slots a sequence owns, in the order of its positions.
        real, positions: `[B, W]`, which columns of the pass are tokens, and where they stand.
    """
    oldest = positions.masked_fill(~real, 1 << 62).amin(1, keepdim=True)
    seen = (alive & (oldest - (alive.cumsum(1) - 1) < window)).any(0)
    return int(seen.int().argmax()) if bool(seen.any()) else len(seen)


def context_length(config: Any) -> float:
    """How many tokens a sequence may have.

    Rotary embeddings of type "dynamic" and "longrope" depend on the longest sequence of the batch
    beyond the original context, so that sequences would no longer be independent of each other.
    """
    config = config.get_text_config(decoder=True)
    length = getattr(config, "max_position_embeddings", None) or float("inf")
    own = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # One set of parameters, or one for each type of layer.
    for rope in (own, *(each for each in own.values() if isinstance(each, dict))):
        if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            length = min(length, original or length)
    return float(length)
