"""What the two models say about a piece of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Read", "Reading", "read_models"]


class Reading(NamedTuple):
    """The models' outputs after the last n of the L tokens of B pieces of text.

    n is L, or L - 1 of a drafter that has no state after a text's first token. It is the same
    difference for every L.

    Attributes:
        target_logits: `[B, n, V_t]`, any floating dtype.
        hidden: `[B, n, d]`, the drafter's last hidden states, which its LM head is applied to.
    """

    target_logits: Tensor
    hidden: Tensor


Read = Callable[[Tensor], Reading]
"""From token ids, `[B, L]` int64 on the CPU, to a `Reading`."""


def read_models(target: Any, drafter: Any) -> Read:
    """Reads with two Hugging Face models of one vocabulary, each on its own device.

    The drafter's logits are taken to be its LM head applied to its last hidden state;
    `rdk_cuda.integrations.huggingface.HuggingFaceModel` checks that of a model.

    Args:
        target, drafter: from `AutoModelForCausalLM`, in evaluation mode.

    Raises:
        ValueError: a model in training mode, whose dropout would be recorded.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> logits, hidden = read_models(model, model)(torch.tensor([[5, 3, 7]]))
        >>> list(logits.shape), list(hidden.shape)
        ([1, 3, 50], [1, 3, 16])
    """
    for name, model in (("target", target), ("drafter", drafter)):
        if model.training:
            raise ValueError(
                f"read_models: {name}, a {type(model).__name__}, is in training mode; call "
                f"{name}.eval() first"
            )

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        logits = target(input_ids=ids.to(target.device), use_cache=False).logits
        # Without its LM head, whose logits are not needed.
        states = drafter.base_model(input_ids=ids.to(drafter.device), use_cache=False)
        return Reading(logits, states.last_hidden_state)

    return read
