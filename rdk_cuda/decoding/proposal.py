"""A step as a proposer sees it, and its proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import Draft
from .trees import depths


class Step(NamedTuple):
    """A decoding step of a batch of B sequences, before anything is proposed.

    Attributes:
        room: how many tokens are still to be decided, 0 where a sequence has ended. Proposals are
            less deep than that: one place is left for the target.
        temperature: `[B]` float32, the target's.
        seeds: `[B]` int64, the user's.
        positions: `[B]` int64, of the first token that is decided.
        limits: `top_k`, `top_p` and `min_p` of the target, `[B]` each, as far as they are given.
    """

    room: list[int]
    temperature: Tensor
    seeds: Tensor
    positions: Tensor
    limits: dict[str, Tensor]


class Proposal(NamedTuple):
    """Tokens that may follow each sequence, the nodes of a chain or of a tree.

    Attributes:
        tokens: `[B, N]` int64 target ids; -1: not used. It ends a chain.
        draft: the step's key and positions, and what `verify` needs of the rows that tokens were
            drawn from. Its own tokens are not read.
        parents: None: a chain, each node the child of the one before it.
        rows: `[B, N]` integers, which row of `draft` each node was drawn from, -1 for a fixed one.
            None: node n from row n, or, where the draft has no logits, all are fixed.
    """

    tokens: Tensor
    draft: Draft
    parents: Tensor | None = None
    rows: Tensor | None = None

    @classmethod
    def drawn(cls, draft: Draft, step: Step) -> Proposal:
        """Propose a chain that `rdk_cuda.draft` drew, as far as there is room."""
        room = torch.tensor(step.room, dtype=torch.int64, device=draft.tokens.device)[:, None]
        places = torch.arange(1, draft.tokens.shape[1] + 1, device=draft.tokens.device)
        return cls(draft.tokens.where(places < room, -1), draft)

    @classmethod
    def fixed(cls, tokens: Sequence[Sequence[int]], step: Step) -> Proposal:
        """Propose a chain of undrawn tokens for each sequence: n-grams, copies, or none.

        Args:
            tokens: B lists, each as long as it is; what there is no room for is left out.
            step: the step.
        """
        room = [max(each - 1, 0) for each in step.room]
        chains = [list(own[:most]) for own, most in zip(tokens, room, strict=True)]
        nodes = padded(chains, step.seeds.device)
        return cls(nodes, _without_distribution(nodes, step))

    @classmethod
    def tree(cls, tokens: Tensor, parents: Tensor, step: Step) -> Proposal:
        """Propose fixed nodes, as deep as there is room.

        Args:
            tokens: `[B, N]` int64 target ids, -1 for a node that is not used.
            parents: `[B, N]` int64, which earlier node each is a child of, -1 for the root.
            step: the step.
        """
        room = torch.tensor(step.room, dtype=torch.int64, device=tokens.device)[:, None]
        tokens = tokens.where(depths(parents) + 1 < room, -1)
        return cls(tokens, _without_distribution(tokens, step), parents)


def padded(rows: Sequence[list[int]], device: torch.device) -> Tensor:
    """Return `[B, N]` int64, -1 after the tokens of each row."""
    longest = max(map(len, rows), default=0)
    filled = [row + [-1] * (longest - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.int64, device=device)


def _without_distribution(tokens: Tensor, step: Step) -> Draft:
    return Draft.without_distribution(tokens, seeds=step.seeds, positions=step.positions)
