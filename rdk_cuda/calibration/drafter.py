"""A pruned drafter: its head, its affinity, and what its rows may draft by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..affinity import Affinity
from ..dynamic_tokens import Contexts
from ..functional import gather_logits, redistribute
from ..vocabulary import Vocabulary
from .recording.samples import Samples
from .recording.windows import Window

__all__ = ["FullHead", "PrunedDrafter", "sampled_acceptance"]

FullHead = tuple[Tensor, Tensor | None]
"""A drafter's own LM head: weight `[V_t, d]`, and bias `[V_t]` or None."""

_BLOCK_ENTRIES = 1 << 25  # of q that are held at a time, 128 MB


@dataclass(frozen=True, eq=False)
class PrunedDrafter:
    """What a drafter with a small head drafts with.

    Attributes:
        vocabulary: the tokens that its head keeps.
        affinity: from its V_d rows, virtual ones included, to the target's tokens.
        weight, bias: `[V_d, d]` and `[V_d]` or None, the head.
        dynamic_tokens: a source as `rdk_cuda.RecentTokens`, or None.
    """

    vocabulary: Vocabulary
    affinity: Affinity
    weight: Tensor
    bias: Tensor | None = None
    dynamic_tokens: Callable[[Contexts], Tensor] | None = None

    def columns(self, full_head: FullHead, hidden: Tensor, contexts: Contexts) -> dict[str, Tensor]:
        """Arguments of `draft` and `redistribute`: `draft_logits`, and dynamic columns if any.

        Args:
            full_head: for the logits of dynamic tokens.
            hidden: `[n, d]`, the drafter's last hidden states behind each of the contexts.
            contexts: n sequences of target ids, or `[n, w]`, newest last, -1 for none.
        """
        columns = {"draft_logits": torch.nn.functional.linear(hidden, self.weight, self.bias)}
        if self.dynamic_tokens is not None:
            weight, bias = full_head
            tokens = self.dynamic_tokens(contexts).int()
            columns["dynamic_tokens"] = tokens
            columns["dynamic_logits"] = gather_logits(hidden, weight, tokens, bias)
        return columns

    def mean_dynamic_columns(self, windows: Iterable[Window]) -> float:
        """How many dynamic tokens a position of the windows has."""
        if self.dynamic_tokens is None:
            return 0.0
        used = [self.dynamic_tokens(window.contexts) >= 0 for window in windows]
        return float(torch.cat(used).sum(1).double().mean())


@torch.no_grad()
def sampled_acceptance(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`sum_x min(p(x), q(x))` over the recorded target tokens of each sample: `[n]` float32."""
    rates = []
    block = max(1, _BLOCK_ENTRIES // drafter.affinity.target_size)
    for rows in torch.split(torch.arange(len(samples), device="cpu"), block):
        part = samples.select(rows)
        columns = drafter.columns(full_head, part.hidden, part.contexts)
        q = redistribute(affinity=drafter.affinity, temperature=temperature, **columns)
        q = q.gather(1, part.targets.long())
        rates.append(torch.minimum(part.target_probs(temperature), q).sum(1))
    return torch.cat(rates)
