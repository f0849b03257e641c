"""Stretches of text that models read at once, and what the two models say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Read", "Reading", "Window", "cut_windows", "read_models"]


class Window(NamedTuple):
    """Consecutive tokens of one document, which windows of the same document share."""

    document: int
    ids: list[int]

    @property
    def contexts(self) -> list[list[int]]:
        """What stands before the prediction at each position."""
        return [self.ids[:length] for length in range(1, len(self.ids) + 1)]


def cut_windows(
    documents: Sequence[Sequence[int]], positions: int, length: int, *, first: int | None = None
) -> list[Window]:
    """About `positions` positions in windows of `length` tokens, spread over documents.

    Windows of one document do not overlap; documents shorter than a window have none.

    Args:
        documents: token ids.
        first: the token that begins every text of the models, if there is one. A window from the
            middle of a document gets it in front, in place of its last token: Gemma 3 270M loses
            0.8 nats a token without it.

    Raises:
        ValueError: no document has `length` tokens.

    Example:
        >>> cut_windows([[1, 2, 3, 4], [5], [6, 7]], positions=4, length=2)
        [Window(document=0, ids=[2, 3]), Window(document=2, ids=[6, 7])]
    """
    if positions < 1 or length < 1:
        raise ValueError(f"cut_windows: positions is {positions} and length {length}; needs both")
    long_enough = [place for place, ids in enumerate(documents) if len(ids) >= length]
    if not long_enough:
        longest = max(map(len, documents), default=0)
        raise ValueError(
            f"cut_windows: the longest of {len(documents)} documents has {longest} tokens; needs "
            f"one of {length}, a window"
        )
    count = -(-positions // length)
    chosen = min(count, len(long_enough))
    windows = []
    for turn in range(chosen):
        document = long_enough[turn * len(long_enough) // chosen]
        ids = documents[document]
        share = count * (turn + 1) // chosen - count * turn // chosen
        here = min(share, len(ids) // length)
        for place in range(here):
            start = (2 * place + 1) * (len(ids) - here * length) // (2 * here) + place * length
            own = list(ids[start : start + length])
            if first is not None and own[0] != first:
                own = [first, *own[:-1]]
            windows.append(Window(document, own))
    return windows


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
