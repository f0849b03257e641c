"""Heads that vLLM has cut into shards, one for each rank of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...drafter import LiftedHead, LiftedRows
from ...dynamic_tokens import TokenHead
from ...dynamic_tokens.columns import logits_of

Collective = Callable[[Tensor], Tensor]


class HeadShard:
    """The rows of a head that a rank has; all of them where there is one rank.

    Args:
        head: vLLM's `VocabParallelEmbedding`, which an LM head is, too.

    Attributes:
        rows, bias: `[n, d]` and `[n]` or None, of the tokens from `start` on.
        size: how many the whole head has.
    """

    def __init__(self, head: Any) -> None:
        indices = head.shard_indices
        self.start: int = indices.org_vocab_start_index
        self.size: int = head.org_vocab_size
        rows: Tensor = head.weight.detach()
        bias: Tensor | None = getattr(head, "bias", None)
        bias = None if bias is None else bias.detach()
        self._padded, self._ranks, count = (rows, bias), head.tp_size, indices.num_org_elements
        self.rows, self.bias = rows[:count], None if bias is None else bias[:count]

    def whole(self, all_gather: Collective) -> tuple[Tensor, Tensor | None]:
        """Gather `[size, d]` and `[size]` on every rank, joined along the first dimension."""
        if self._ranks == 1:
            return self.rows, self.bias
        rows, bias = self._padded
        gathered = None if bias is None else all_gather(bias)[: self.size]
        return all_gather(rows)[: self.size], gathered

    def logits(self, all_reduce: Collective, lifted: LiftedRows | None) -> TokenHead:
        """Make the head of dynamic tokens, or lift it from this, the target's, head."""
        own: TokenHead = (self.rows, self.bias)
        if lifted is not None:
            prior = lifted.log_prior[self.start :][: len(self.rows)]
            own = LiftedHead(replace(lifted, log_prior=prior), self.rows)
        if self._ranks == 1:
            return own
        return ShardedHead(own, self.start, len(self.rows), self.size, all_reduce)


class ShardedHead:
    """A full head of dynamic tokens: each rank gives the logits that it has rows for.

    Args:
        own: the rank's part, whose tokens count from 0.
        start, count: which tokens it has.
        size: V_t.
        all_reduce: adds up over the ranks. All but one add 0, so the sum is exact.
    """

    def __init__(
        self, own: TokenHead, start: int, count: int, size: int, all_reduce: Collective
    ) -> None:
        self._own, self._start, self._count, self.size = own, start, count, size
        self._all_reduce = all_reduce

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`[B, C]` logits of tokens `[B, C]` int32, -1 for none, at hidden states `[B, d]`."""
        local = tokens - self._start
        here = (local >= 0) & (local < self._count)
        logits = logits_of(self._own, hidden, local.where(here, -1))
        return self._all_reduce(logits.masked_fill(~here, 0)).masked_fill(tokens < 0, -torch.inf)
