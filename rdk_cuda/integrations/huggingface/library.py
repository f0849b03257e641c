"""Differences between the releases of Transformers that are served, from 5.0 on.

A model's KV cache is its argument `cache` from 5.24 on, and `past_key_values` before, or, where all
layers are recurrent, `cache_params`. A model whose code is not the library's own can have either
name with any release. `Cache.crop` takes how many
tokens to drop, as a negative number; from 5.24 on it refuses how many to keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import transformers

CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")


def cache_argument(module: Any) -> str:
    """Find how a module's forward calls its KV cache; the newest name if it takes none.

    Where a decorator takes the old name, too, the signature is still that of the function itself.
    """
    names = inspect.signature(module.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in names), CACHE_ARGUMENTS[0])


def given_cache(arguments: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and the KV cache among arguments of a model's forward; None in its place if none."""
    given = [name for name in CACHE_ARGUMENTS if arguments.get(name) is not None]
    name = given[0] if given else CACHE_ARGUMENTS[0]
    return name, arguments.get(name)


def tokens_in(cache: Any) -> int:
    """How many tokens a cache has; of one with recurrent layers alone, 1 if it has any."""
    linear = getattr(cache, "is_linear", None)
    if linear and all(linear):
        return int(cache.has_previous_state())
    return int(cache.get_seq_length())


def drop_unused_cache(model: Any) -> None:
    """Take a static cache that nobody has filled off a model.

    Up to 5.12, `generate` keeps there what it makes, and fails with the next call if it is empty.
    """
    cache = getattr(model, "_cache", None)
    if isinstance(cache, transformers.StaticCache) and not cache.is_initialized:
        del model._cache


def unwrapped(model: Any) -> Any:
    """The library's model in what `torch.compile` or PEFT has made of it, with its adapters.

    Raises:
        TypeError: it has more than the library's model, as prompts that were trained.
    """
    model = getattr(model, "_orig_mod", model)
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise not_served(model, "puts trained prompts before the tokens; needs other adapters")
    return unwrapped(model.get_base_model())


def not_served(model: Any, reason: str) -> TypeError:
    """The error for a model of which this release of the library does not give what is needed."""
    return TypeError(
        f"HuggingFaceModel: {type(model).__name__} of Transformers {transformers.__version__} "
        f"{reason}"
    )
