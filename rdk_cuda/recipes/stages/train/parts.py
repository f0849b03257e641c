"""The parts of a calibrated drafter that are trained, and the columns of logits that they make."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from ....drafter import FullHead, PrunedDrafter
from ....dynamic_tokens import Contexts, dynamic_columns

PARTS = "head", "virtual-rows", "all"
HEAD, VIRTUAL_ROWS, ALL = PARTS
"""Parts that may be trained: the rows of the small head; the virtual ones of these; the rows, and
the drafter below its head."""


class Columns(NamedTuple):
    """Arguments of a loss."""

    draft_logits: Tensor
    dynamic_tokens: Tensor | None = None
    dynamic_logits: Tensor | None = None


class TrainedRows(nn.Module):
    """The rows of a small head from `first` on, as parameters in float32.

    Called, the `DynamicHead` of what its drafter offers.
    """

    def __init__(self, drafter: PrunedDrafter, full_head: FullHead, first: int = 0) -> None:
        super().__init__()
        self.drafter, self.size = drafter, drafter.affinity.target_size
        self.full_head, self.first = full_head, first
        self.weight = nn.Parameter(drafter.weight.detach()[first:].float().clone())
        bias = drafter.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach()[first:].float().clone())

    def columns(self, hidden: Tensor, contexts: Contexts) -> Columns:
        """Make the drafter's columns behind contexts, at its states `[n, d]`, with gradients."""
        logits, source = linear(hidden, *self.head()), self.drafter.dynamic_tokens
        if source is None:
            return Columns(logits)
        return Columns(logits, *dynamic_columns(source, self, contexts, hidden))

    def head(self) -> tuple[Tensor, Tensor | None]:
        """The small head in float32: weight and bias."""
        weight, bias = self.drafter.weight, self.drafter.bias
        weight = torch.cat([weight[: self.first].float(), self.weight])
        if bias is not None and self.bias is not None:
            bias = torch.cat([bias[: self.first].float(), self.bias])
        return weight, bias

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Answer as a `DynamicHead`."""
        weight, bias = self.full_head
        at = tokens.long().clamp(0, len(weight) - 1)  # the logit of no token is not read
        own = (embedding(at, weight) @ hidden[:, :, None])[:, :, 0]
        return own if bias is None else own + bias[at]

    def trained(self) -> PrunedDrafter:
        weight, bias = self.head()
        dtype = self.drafter.weight.dtype
        bias = None if bias is None else bias.detach().to(dtype)
        return replace(self.drafter, weight=weight.detach().to(dtype), bias=bias)


def parts_of(train: str, drafter: PrunedDrafter, full_head: FullHead) -> TrainedRows:
    """Find what `train` names in a drafter; a `ValueError` if it has no such parts."""
    kept = drafter.vocabulary.draft_size
    if train == VIRTUAL_ROWS:
        if drafter.affinity.draft_size == kept:
            raise ValueError("the drafter has no virtual tokens; train head instead")
        return TrainedRows(drafter, full_head, first=kept)
    return TrainedRows(drafter, full_head)
