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

from tests.statistics.markov import ORDER, Loop


@dataclass
class TreeLoop(Loop):
    """Speculative decoding with trees, `drafts` levels of them, and `fixed` children before a drawn
    one at each node."""

    fixed: int = 1
    removes_fixed: bool = True  # From the q that the drawn child is verified with.
    own_branches: bool = True  # Words of their own for nodes of one depth.
    own_nesting: bool | None = None  # By chains in place of `verify_tree`: keys for nested blocks.

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

    def step(
        self, text: Tensor, done: Tensor, seeds: Tensor, offered: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
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
        verify = self.walk if self.own_nesting is None else self.walk_by_chains
        put, accepted = verify(tokens, contexts, keys, done)
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
        limits = torch.full((batch,), self.top_k, dtype=torch.int32) if self.top_k else None
        put, accepted, _ = torch.ops.rdk.verify_tree(
            self.target_rows(contexts, [-1, *nodes]),
            tokens.flatten(),
            torch.tensor(self.parents, dtype=torch.int32).repeat(batch),
            torch.arange(batch + 1, dtype=torch.int32) * count,
            ones * models.target_temperature,
            keys,
            done,
            self.drafts,
            limits,
            None,
            None,
            None,
            self.drafter_rows(contexts, drawn),
            None,
            rows.flatten(),
            ones * models.draft_temperature,
            *models.affinity.by_target,
            None,
            None,
            self.method,
        )
        return put, accepted.long()

    def walk_by_chains(
        self, tokens: Tensor, contexts: dict[int, Tensor], keys: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same by `verify` of each drawn chain that the walk comes to.

        Nested ones have keys of their own, or the step's, and so words that were used before.
        """
        batch = tokens.shape[0]
        put = torch.full((batch, self.drafts + 1), -1)
        accepted = torch.zeros(batch, dtype=torch.int64)
        at = torch.full((batch,), -1)
        nesting, walking = (
            torch.zeros(batch, dtype=torch.int64),
            torch.ones(batch, dtype=torch.bool),
        )
        for node in [-1, *range(len(self.parents))]:
            here = (walking & (at == node)).nonzero().flatten()
            if not here.numel():
                continue
            chain = self.drawn_chain(node)
            own = torch.ops.rdk.step_keys(keys[here], nesting[here], 77)
            found, count = self.verify_chain(
                {n: each[here] for n, each in contexts.items()},
                tokens[here],
                [node, *chain],
                torch.where((nesting[here] > 0) & bool(self.own_nesting), own, keys[here]),
                done[here] + self.depth(node),
            )
            last = torch.tensor([node, *chain])[count]
            depth = self.depth(node) + count
            for j in range(found.shape[1]):
                some = j <= count
                put[here[some], self.depth(node) + j] = found[some, j]
            at[here], nesting[here], accepted[here] = -2, nesting[here] + 1, depth
            for child, parent in enumerate(self.parents):
                if not self.is_drawn(child):
                    y = found.gather(1, count[:, None]).squeeze(1)
                    goes = (last == parent) & (tokens[here, child] == y) & (at[here] == -2)
                    at[here[goes]] = child
                    accepted[here[goes]] += 1
            walking[here] = at[here] >= 0
        return put, accepted

    def drawn_chain(self, node: int) -> list[int]:
        drawn = [c for c, p in enumerate(self.parents) if p == node and self.is_drawn(c)]
        return [drawn[0], *self.drawn_chain(drawn[0])] if drawn else []

    def verify_chain(
        self,
        contexts: dict[int, Tensor],
        tokens: Tensor,
        nodes: list[int],
        keys: Tensor,
        first: Tensor,
    ) -> tuple[Tensor, Tensor]:
        models, batch, count = self.models, keys.numel(), len(nodes) - 1
        chain, ones = nodes[1:], torch.ones(batch)
        rows = models.drafter[:0] if not chain else self.drafter_rows(contexts, chain)
        put, accepted, _ = torch.ops.rdk.verify(
            self.target_rows(contexts, nodes),
            rows,
            None,
            None,
            tokens[:, chain].flatten(),
            torch.arange(batch + 1, dtype=torch.int32) * count,
            ones * models.target_temperature,
            ones * models.draft_temperature,
            keys,
            first,
            *models.affinity.by_target,
            count,
            method=self.method,
        )
        return put, accepted.long()
