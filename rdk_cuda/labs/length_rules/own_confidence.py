"""The confidence head of a DSpark drafter, which the core leaves in its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from ...decoding import Output
from ...decoding.lengths import Drafted
from ...integrations.block_drafters import BlockDrafter
from ...integrations.block_drafters.checkpoint import CONFIDENCE
from ...integrations.eagle3.weights import read_tensors


class ConfidentDrafter(BlockDrafter):
    """As `BlockDrafter`, and it knows how likely its drafts are accepted.

    Attributes:
        newest: `[B]`, the tokens that a step's drafts follow.
    """

    weight: Tensor
    bias: Tensor
    newest: Tensor

    def read_confidence(self, directory: str | PathLike[str]) -> ConfidentDrafter:
        """Read the head from the drafter's files; KeyError where they have none."""
        tensors = read_tensors(Path(directory))
        own = self.network.head
        self.weight = tensors[f"{CONFIDENCE}proj.weight"][0].to(own)
        self.bias = tensors[f"{CONFIDENCE}proj.bias"].to(own)
        return self

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `BlockDrafter.feed`."""
        if self.block is None:
            last = [new[-1] if new else 0 for new in tokens]
            self.newest = torch.tensor(last, dtype=torch.int64, device=self.device)
        return super().feed(tokens, keep)

    def confidences(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`[...]`: how likely a draft is accepted, by its state and the token before it."""
        if hidden.shape[-1] < len(self.weight):  # it reads the token, too
            hidden = self.network.with_previous(hidden, tokens)
        return (hidden @ self.weight + self.bias).sigmoid()


@dataclass(frozen=True)
class OwnConfidence:
    """While the drafts are all accepted with at least this probability, as the drafter's head says.

    It looks at the next place's state and the token before it, so it ends a draft before the
    place's token is drawn.
    """

    drafter: ConfidentDrafter
    at_least: float

    def __call__(self, drafted: Drafted) -> Tensor:
        block, places = self.drafter.block, len(drafted.places)
        if block is None:
            raise ValueError("OwnConfidence: needs the drafter that drafts")
        if places >= block.shape[1]:
            return torch.zeros(len(block), dtype=torch.bool, device=block.device)
        drawn = [place.tokens.flatten()[:, None].clamp(min=0) for place in drafted.places]
        before = torch.cat([self.drafter.newest[:, None], *drawn], dim=1)
        accepted = self.drafter.confidences(block[:, : places + 1], before)
        return accepted.prod(dim=1) >= self.at_least
