"""The parts of a calibrated drafter that are trained, and the columns of logits that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from ....drafter import FullHead, LiftedRows, PrunedDrafter
from ....drafter.lifted import features_of
from ....dynamic_tokens import Contexts, dynamic_columns

PARTS = "head", "virtual-rows", "lifted-rows", "all"
HEAD, VIRTUAL_ROWS, LIFTED_ROWS, ALL = PARTS
"""Parts that may be trained: the rows of the small head; the virtual ones of these; the map and
shift of lifted rows, and what follows from them; the rows, and the drafter below its head."""


class Columns(NamedTuple):
    """Arguments of a loss."""

    draft_logits: Tensor
    dynamic_tokens: Tensor | None = None
    dynamic_logits: Tensor | None = None


class Trained(nn.Module, ABC):
    """Parts of a drafter as parameters; called, the `DynamicHead` of what its drafter offers."""

    def __init__(self, drafter: PrunedDrafter) -> None:
        super().__init__()
        self.drafter, self.size = drafter, drafter.affinity.target_size

    def columns(self, hidden: Tensor, contexts: Contexts) -> Columns:
        """Make the drafter's columns behind contexts, at its states `[n, d]`, with gradients."""
        logits, source = linear(hidden, *self.head()), self.drafter.dynamic_tokens
        if source is None:
            return Columns(logits)
        return Columns(logits, *dynamic_columns(source, self, contexts, hidden))

    @abstractmethod
    def head(self) -> tuple[Tensor, Tensor | None]:
        """The small head in float32: weight and bias."""

    @abstractmethod
    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Answer as a `DynamicHead`."""

    def trained(self) -> PrunedDrafter:
        weight, bias = self.head()
        dtype = self.drafter.weight.dtype
        bias = None if bias is None else bias.detach().to(dtype)
        return replace(self.drafter, weight=weight.detach().to(dtype), bias=bias)


class TrainedRows(Trained):
    """The rows of the small head from `first` on, as parameters in float32."""

    def __init__(self, drafter: PrunedDrafter, full_head: FullHead, first: int = 0) -> None:
        super().__init__(drafter)
        self.full_head, self.first = full_head, first
        self.weight = nn.Parameter(drafter.weight.detach()[first:].float().clone())
        bias = drafter.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach()[first:].float().clone())

    def head(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.drafter.weight, self.drafter.bias
        weight = torch.cat([weight[: self.first].float(), self.weight])
        if bias is not None and self.bias is not None:
            bias = torch.cat([bias[: self.first].float(), self.bias])
        return weight, bias

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        weight, bias = self.full_head
        at = tokens.long().clamp(0, len(weight) - 1)  # the logit of no token is not read
        own = (embedding(at, weight) @ hidden[:, :, None])[:, :, 0]
        return own if bias is None else own + bias[at]


class TrainedLift(Trained):
    """The map and the shift of lifted rows (DESIGN section 2, "Lifted rows"), as parameters.

    Virtual rows are means of lifted ones, so they follow. Tokens that a screen offers are still
    chosen by the rows that it was made of.
    """

    def __init__(self, drafter: PrunedDrafter, target_head: Tensor) -> None:
        super().__init__(drafter)
        lifted = drafter.lifted
        assert lifted is not None  # `parts_of` has looked
        self.lifted = lifted
        self.map = nn.Parameter(lifted.map.detach().clone())
        self.shift = nn.Parameter(lifted.shift.detach().clone())
        features = features_of(target_head, lifted.log_prior)
        self._head_of_target, self._log_prior = features[:, :-2], features[:, -1]
        self._kept = drafter.vocabulary.draft_size
        self._means = drafter.affinity.expectation(features, first_row=self._kept).float()

    def head(self) -> tuple[Tensor, Tensor]:
        weight, bias = self.drafter.weight[: self._kept].float(), self.drafter.bias
        zero = self.shift.new_zeros(self._kept)
        virtual = self.shift[0] + self.shift[1] * self._means[:, -1]
        return (
            torch.cat([weight, self._means @ self.map]),
            torch.cat([zero if bias is None else bias[: self._kept].float(), virtual]),
        )

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        at = tokens.long().clamp(0, len(self._log_prior) - 1)
        mapped, prior = linear(hidden, self.map), self._log_prior[at]
        states, constant, slope = mapped[:, :-2, None], mapped[:, -2:-1], mapped[:, -1:]
        own = (embedding(at, self._head_of_target) @ states)[:, :, 0]
        return own + constant + prior * slope + self.shift[0] + self.shift[1] * prior

    def trained(self) -> PrunedDrafter:
        lifted: LiftedRows = replace(
            self.lifted, map=self.map.detach().clone(), shift=self.shift.detach().clone()
        )
        return replace(super().trained(), lifted=lifted)


def parts_of(
    train: str, drafter: PrunedDrafter, full_head: FullHead, target_head: Tensor
) -> Trained:
    """Find what `train` names in a drafter; a `ValueError` if it has no such parts."""
    kept = drafter.vocabulary.draft_size
    if train == LIFTED_ROWS:
        if drafter.lifted is None:
            raise ValueError(
                "the drafter has no lifted rows: it had rows for all tokens; train head instead"
            )
        return TrainedLift(drafter, target_head)
    if train == VIRTUAL_ROWS:
        if drafter.affinity.draft_size == kept:
            raise ValueError("the drafter has no virtual tokens; train head instead")
        return TrainedRows(drafter, full_head, first=kept)
    return TrainedRows(drafter, full_head)
