"""The columns that dynamic tokens add to a row of logits: the tokens offered, and their logits."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..functional import gather_logits
from ..ranges import Range
from .sources import Contexts, DynamicTokens, offered


class DynamicHead(Protocol):
    """Logits of single tokens, from a drafter's hidden states.

    Attributes:
        size: V_t.
    """

    @property
    def size(self) -> int: ...

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`[B, C]` floats, of tokens `[B, C]` int32, -1 for none, at hidden states `[B, d]`."""
        ...


TokenHead = tuple[Tensor, Tensor | None] | DynamicHead
"""Gives dynamic tokens their logits: weight `[V_t, d]` and bias `[V_t]` or None, or a head."""


def dynamic_columns(
    source: DynamicTokens, full_head: TokenHead, contexts: Contexts, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the tokens that a source offers, `[B, C]` int32, -1 for none, and their logits.

    Args:
        full_head: for their logits.
        contexts: B sequences of target ids, or `[B, L]` with the newest last.
        hidden: `[B, d]`, the drafter's last hidden states; both results are on its device.
    """
    tokens = offered(source, contexts, hidden).int().to(hidden.device)
    with Range("gather logits", tokens.shape[1]):
        return tokens, logits_of(full_head, hidden, tokens)


def logits_of(full_head: TokenHead, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Return `[B, C]` logits of tokens `[B, C]` int32, -1 for none, at hidden states `[B, d]`."""
    if isinstance(full_head, tuple):
        weight, bias = full_head
        return gather_logits(hidden, weight, tokens, bias)
    return full_head(hidden, tokens)
