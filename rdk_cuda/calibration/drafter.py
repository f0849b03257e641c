"""A pruned drafter: its head, its affinity, and where its dynamic tokens come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..affinity import Affinity
from ..dynamic_tokens import Contexts
from ..functional import gather_logits, redistribute
from ..vocabulary import Vocabulary
from .heads import FullHead, prune_head
from .recording.samples import Samples
from .recording.windows import Window

__all__ = ["FullHead", "PrunedDrafter", "sampled_acceptance", "sampled_draft_probs"]

_BLOCK_ENTRIES = 1 << 25  # of q that are held at a time, 128 MB


@dataclass(frozen=True, eq=False)
class PrunedDrafter:
    """What a drafter with a small head drafts with.

    Attributes:
        vocabulary: the tokens that its head keeps.
        affinity: from its V_d rows, virtual ones included, to the target's tokens.
        weight, bias: the head, `[V_d, d]` and `[V_d]` or None.
        dynamic_tokens: a source such as `rdk_cuda.RecentTokens`, or None.
    """

    vocabulary: Vocabulary
    affinity: Affinity
    weight: Tensor
    bias: Tensor | None = None
    dynamic_tokens: Callable[[Contexts], Tensor] | None = None

    @classmethod
    def plain(cls, full_head: FullHead, vocabulary: Vocabulary) -> PrunedDrafter:
        """The kept rows of the full head, without redistribution."""
        head = prune_head(*full_head, vocabulary)
        return cls(vocabulary, Affinity.intersection(vocabulary), *head)

    def in_dtype(self, dtype: torch.dtype) -> PrunedDrafter:
        """The same drafter with a head of this dtype."""
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, weight=self.weight.to(dtype), bias=bias)

    def columns(self, full_head: FullHead, hidden: Tensor, contexts: Contexts) -> dict[str, Tensor]:
        """Arguments of `draft` and `redistribute`: `draft_logits`, and dynamic columns if any.

        Args:
            full_head: for the logits of dynamic tokens.
            hidden: `[n, d]`, the drafter's last hidden state after each of the contexts.
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
        """The mean number of dynamic tokens at a position of the windows."""
        if self.dynamic_tokens is None:
            return 0.0
        used = [self.dynamic_tokens(window.contexts) >= 0 for window in windows]
        return float(torch.cat(used).sum(1).double().mean())


@torch.no_grad()
def sampled_draft_probs(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`q` at the recorded target tokens of each sample: `[n, m]` float32."""
    probs = torch.empty(samples.targets.shape, dtype=torch.float32, device="cpu")
    block = max(1, _BLOCK_ENTRIES // drafter.affinity.target_size)
    for rows in torch.arange(len(samples), device="cpu").split(block):
        part = samples.select(rows)
        columns = drafter.columns(full_head, part.hidden, part.contexts)
        q = redistribute(affinity=drafter.affinity, temperature=temperature, **columns)
        probs[rows] = q.gather(1, part.targets.long())
    return probs


def sampled_acceptance(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`sum_x min(p(x), q(x))` over the recorded target tokens of each sample: `[n]` float32."""
    q = sampled_draft_probs(samples, drafter, full_head, temperature)
    return torch.minimum(samples.target_probs(temperature), q).sum(1)
