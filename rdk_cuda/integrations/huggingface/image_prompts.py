"""Prompts with images: the library reads them, and decoding goes on behind what it has read.

The whole batch is read in one pass, as by `generate` itself, into our cache: with the library's
masks, in which the tokens of an image may see each other, and its positions. It may count on behind
an image otherwise than by tokens (M-RoPE). By how much, its positions say.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .library import not_served

# The types that were compared with the library. Others may read more than a prompt with images.
TYPES = {"gemma3", "gemma4", "glm4v", "internvl", "llava", "mistral3", "qwen2_vl", "qwen2_5_vl"}
TYPES |= {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
ARGUMENTS = {"image_grid_thw", "image_position_ids", "image_sizes", "mm_encoder_outputs"}
ARGUMENTS |= {"mm_token_type_ids", "pixel_values", "token_type_ids"}
_BY_TOKENS = ("attention_mask", "mm_token_type_ids", "position_ids", "token_type_ids")


def is_empty(argument: str, value: Any) -> bool:
    """Whether an argument says that there are no images, as the library has it with text alone."""
    if isinstance(value, Tensor):
        return argument in ("mm_token_type_ids", "token_type_ids") and not bool(value.any())
    return value is None or bool(argument == "mm_encoder_outputs" and len(value) == 0)


def has_images(model_arguments: Mapping[str, Any]) -> bool:
    """Whether a prompt has images."""
    names = ARGUMENTS & model_arguments.keys()
    return any(not is_empty(name, model_arguments[name]) for name in names)


class ImagePrompts(NamedTuple):
    """Prompts `[B, W]`, padded on the left, and what else `generate` gives the model with them."""

    input_ids: Tensor
    model_arguments: Mapping[str, Any]

    @property
    def real(self) -> Tensor:
        """Which columns are tokens; without the last one, which decoding reads."""
        mask = self.model_arguments.get("attention_mask")  # None where all prompts are as long
        mask = torch.ones_like(self.input_ids) if mask is None else mask
        return mask[:, :-1].bool().cpu()

    def read(self, model: Any, cache_argument: str, past: Any) -> Tensor:
        """Have the model read them; by how much positions are beyond the number of tokens, `[B]`.

        Raises:
            ValueError: a prompt ends with an image.
            TypeError: an old release, which does not tell positions.
        """
        config, ids = model.config, self.input_ids
        image = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        if image is not None and bool((ids[:, -1] == image).any()):
            raise ValueError("Generate: a prompt ends with an image; needs text behind it")
        given = {name: own for name, own in self.model_arguments.items() if own is not None}
        given |= {name: given[name][..., :-1] for name in _BY_TOKENS if name in given}
        given |= {cache_argument: past, "use_cache": True, "logits_to_keep": 1}
        if "cache_position" in inspect.signature(model.prepare_inputs_for_generation).parameters:
            given["cache_position"] = torch.arange(ids.shape[1] - 1, device=ids.device)
        inputs = model.prepare_inputs_for_generation(ids[:, :-1], is_first_iteration=True, **given)
        positions, counts = inputs.get("position_ids"), self.real.sum(1).to(ids.device)
        if positions is None and hasattr(model.base_model, "rope_deltas"):
            raise not_served(model, "does not say where tokens behind images stand")
        model(**inputs, return_dict=True)
        if positions is None or positions.dim() == 2:
            return torch.zeros_like(counts)
        highest: Tensor = positions[-3:].amax((0, 2))  # of times, heights and widths
        return highest.to(ids.device) + 1 - counts
