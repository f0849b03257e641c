"""A decoding loop that proposes mixed trees, right and in ways that only look right.

At every node of a tree the likeliest tokens of the drafter are fixed children, and one more child
is drawn from what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tests.proof.statistics.markov import ORDER, Loop


@dataclass
class TreeLoop(Loop):
    """Speculative decoding with trees, `drafts` levels of them, and `fixed` children before a drawn
    one at each node."""

    fixed: int = 1
    removes_fixed: bool = True  # From the q that the drawn child is verified with.
    own_branches: bool = True  # Words of their own for nodes of one depth.

    @cached_property
    def parents(self) -> list[int]:
        """Level by level; of each node the fixed children come first."""
        parents, level = [], [-1]
        for _ in range(self.drafts):
            begin = len(parents)
            parents += [node for node in level for _ in range(self.fixed + 1)]
            level = list(range(begin, len(parents)))
        return parents

    def is_drawn(self, node: int) -> bool:
        return node % (self.fixed + 1) == self.fixed

    def depth(self, node: int) -> int:
        return 0 if node < 0 else self.depth(self.parents[node]) + 1

    @cached_property
    def likeliest(self) -> Tensor:
        """The fixed children of each context."""
        models, count = self.models, self.models.drafter.shape[0]
        q = torch.ops.rdk.redistribute(
            models.drafter,
            torch.full((count,), models.draft_temperature),
            *models.affinity.by_target,
            models.affinity.row_top,
        )
        return q.topk(self.fixed, 1).indices

    @cached_property
    def rest(self) -> Tensor:
        """The drafter's logits of each context without its fixed children."""
        hidden = self.models.affinity.row_top[None, :, None] == self.likeliest[:, None, :]
        left = self.models.drafter.masked_fill(hidden.any(2), -math.inf)
        return torch.where((left > -math.inf).any(1, keepdim=True), left, self.models.drafter)

    def step(self, text: Tensor, done: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        models, batch, size = self.models, seeds.numel(), self.models.size
        keys, ones = self.step_keys(seeds, done), torch.ones(batch)
        contexts = {-1: models.context(text, ORDER + done)}
        tokens = torch.empty(batch, len(self.parents), dtype=torch.int64)
        for node, parent in enumerate(self.parents):
            before = contexts[parent]
            if self.is_drawn(node):
                tokens[:, node], _ = torch.ops.rdk.draft(
                    self.rest[before],
                    ones * models.draft_temperature,
                    keys,
                    done + self.depth(parent),
                    *models.affinity.by_draft,
                    branches=torch.full((batch,), node * self.own_branches, dtype=torch.int32),
                )
            else:
                tokens[:, node] = self.likeliest[before, node % (self.fixed + 1)]
            contexts[node] = (before * size + tokens[:, node]) % size**ORDER
        put, accepted = self.walk(tokens, contexts, keys, done)
        return put, accepted, torch.full((batch, self.drafts), -1)

    def drafter_rows(self, contexts: dict[int, Tensor], nodes: list[int]) -> Tensor:
        """What drawn nodes are verified with, ``[B * nodes, V_d]``."""
        table = self.rest if self.removes_fixed else self.models.drafter
        rows = torch.stack([table[contexts[self.parents[node]]] for node in nodes], 1)
        return rows.flatten(0, 1)

    def target_rows(self, contexts: dict[int, Tensor], nodes: list[int]) -> Tensor:
        rows = torch.stack([self.models.target[contexts[node]] for node in nodes], 1)
        return rows.flatten(0, 1)

    def walk(
        self, tokens: Tensor, contexts: dict[int, Tensor], keys: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        models, (batch, count) = self.models, tokens.shape
        nodes, ones = list(range(count)), torch.ones(batch)
        drawn = [node for node in nodes if self.is_drawn(node)]
        rows = torch.full((batch, count), -1, dtype=torch.int32)
        rows[:, drawn] = torch.arange(batch * len(drawn), dtype=torch.int32).view(batch, -1)
        put, accepted, _ = torch.ops.rdk.verify_tree(
            self.target_rows(contexts, [-1, *nodes]),
            tokens.flatten(),
            torch.tensor(self.parents, dtype=torch.int32).repeat(batch),
            torch.arange(batch + 1, dtype=torch.int32) * count,
            ones * models.target_temperature,
            keys,
            done,
            self.drafts,
            *(None,) * 4,
            self.drafter_rows(contexts, drawn),
            None,
            rows.flatten(),
            ones * models.draft_temperature,
            *models.affinity.by_target,
            method=self.method,
        )
        return put, accepted.long()
