"""The drafters that the demo compares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, Vocabulary, gather_logits
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .loading import Models
from .text import Window

FULL, PRUNED = "full drafter", "pruned drafter"
FIRST_ORDER, DYNAMIC = "first-order RDK", "dynamic tokens"
VIRTUAL, VIRTUAL_DYNAMIC = "virtual tokens", "virtual+dynamic"


@dataclass(frozen=True)
class Method:
    """A drafter's head with the affinity that leads from its rows to the target's tokens.

    Attributes:
        name: FULL, PRUNED, FIRST_ORDER, DYNAMIC, VIRTUAL or VIRTUAL_DYNAMIC.
        keep: the share of the vocabulary that its head keeps.
        vocabulary: the tokens that it keeps.
        weight, bias: `[V_d, d]` and `[V_d]` or None, the head.
        tuned: tau of the first-order affinity, the offset of virtual tokens (-inf: they are off).
        dynamic_tokens: what a row can draft besides, its logits by the drafter's full head.
    """

    name: str
    keep: float
    vocabulary: Vocabulary
    affinity: Affinity
    weight: Tensor
    bias: Tensor | None
    tuned: float | None = None
    dynamic_tokens: RecentTokens | None = None

    def __str__(self) -> str:
        """For example `virtual tokens at 25 %`."""
        return f"{self.name} at {100 * self.keep:.4g} %"

    def columns(
        self, models: Models, hidden: Tensor, contexts: Sequence[Sequence[int]]
    ) -> dict[str, Tensor]:
        """Arguments of `draft` and `redistribute`: `draft_logits`, and the dynamic columns if any.

        Args:
            hidden: `[n, d]`, the drafter's last hidden states behind each of the contexts.
        """
        columns = {"draft_logits": torch.nn.functional.linear(hidden, self.weight, self.bias)}
        if self.dynamic_tokens is not None:
            tokens = self.dynamic_tokens(contexts)
            weight, bias = models.drafter_head
            columns["dynamic_tokens"] = tokens
            columns["dynamic_logits"] = gather_logits(hidden, weight, tokens, bias)
        return columns

    def mean_dynamic_columns(self, windows: Iterable[Window]) -> float:
        """How many dynamic tokens a position of the windows has."""
        if self.dynamic_tokens is None:
            return 0.0
        used = [self.dynamic_tokens(window.contexts) >= 0 for window in windows]
        return float(torch.cat(used).sum(1).double().mean())

    def drafter(self, models: Models) -> HuggingFaceModel:
        """The drafter with this head, for decoding."""
        if self.name == FULL:
            return HuggingFaceModel(models.drafter)
        return HuggingFaceModel(models.drafter, head=self.weight, head_bias=self.bias)
