"""The drafters that the demo compares."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .loading import Models

FULL, PRUNED = "full drafter", "pruned drafter"
FIRST_ORDER, VIRTUAL = "first-order RDK", "virtual tokens"


@dataclass(frozen=True)
class Method:
    """A drafter's head with the affinity that leads from its rows to the target's tokens.

    Attributes:
        name: FULL, PRUNED, FIRST_ORDER or VIRTUAL.
        keep: the share of the vocabulary that its head keeps.
        vocabulary: the tokens that it keeps.
        weight, bias: `[V_d, d]` and `[V_d]` or None, the head.
        tuned: tau of the first-order affinity, the offset of virtual tokens.
    """

    name: str
    keep: float
    vocabulary: Vocabulary
    affinity: Affinity
    weight: Tensor
    bias: Tensor | None
    tuned: float | None = None

    def __str__(self) -> str:
        """For example `virtual tokens at 25 %`."""
        return f"{self.name} at {100 * self.keep:.4g} %"

    def logits(self, hidden: Tensor) -> Tensor:
        """The drafter's logits `[..., V_d]` for its last hidden states `[..., d]`."""
        return torch.nn.functional.linear(hidden, self.weight, self.bias)

    def drafter(self, models: Models) -> HuggingFaceModel:
        """The drafter with this head, for decoding."""
        if self.name == FULL:
            return HuggingFaceModel(models.drafter)
        return HuggingFaceModel(models.drafter, head=self.weight, head_bias=self.bias)
