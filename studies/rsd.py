"""RSD (arXiv:2402.14160) as a proposer and a rule, to compare mixed trees with.

Both are plain PyTorch: the distributions of drafter and target are made whole, `[V_t]` for each
node, and nothing is drawn or judged by the operators.

What a second drawn child `x'`, from `q'`, would take in the operators: it is judged by the residual
`m = (p - q)+`, whose mass Z is a sum over the vocabulary, so a pass over the target's row and the
drafter's, 2 (V_t + V_d) bytes in 16 bits, for each rejected sibling. A bound `U >= Z` that does not
depend on `x'` needs none, such as 1 less the `min(p, q)` of tokens that are looked up: accept if
`coin * U * q'(x') < m(x')`; otherwise draw y by the residual loop, and draw it anew with
probability `Z / U * min(1, U q'(y) / m(y))`. A try of that loop is a coin of Z, and one of `Z / U`
if a looked-up token that fails there is drawn anew. That accepts `sum min(m / U, q')`, the less the
looser U is. It is not built: at temperature 1, where targets are flat, a second drawn child pays
.01 to .03 with three or more children, and at .7 and below fixed ones are as good or better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import functional
from rdk_cuda.affinity import Affinity
from rdk_cuda.decoding import Proposer, StateDrafter
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.models import Output, TreeModel, feed_unread
from rdk_cuda.decoding.proposal import Proposal, Step, padded
from rdk_cuda.decoding.rules import Decided, Logprobs
from rdk_cuda.decoding.trees import branch, depths
from rdk_cuda.dynamic_tokens import DynamicTokens, TokenHead, dynamic_columns
from rdk_cuda.functional import Draft
from rdk_cuda.vocabulary import Vocabulary

from .recursive_rejection import Beam, beam_search_step, gumbel_top_k, verify_rsd


@dataclass
class _Grown:
    """A sequence's tree: of each node its token, its parent, and the row it was drawn from.

    Attributes:
        levels: how many it may have.
        frontier: the nodes that the drafter reads next, -1 for the root.
        read: how many nodes, the first ones, it has read or reads next.
    """

    levels: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    read: int = 0

    def add(self, tokens: list[int], above: list[int], first_row: int, level: int) -> None:
        """A level: tokens, and which node of the frontier each is a child of."""
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += [self.frontier[row] for row in above]
        self.rows += [first_row + row for row in above]
        self.frontier = []
        if level + 1 < self.levels:
            self.frontier, self.read = list(range(first, len(self.tokens))), len(self.tokens)

    def path(self, row: int) -> list[int]:
        """The tokens down to a node of the frontier; none where there is no such node."""
        node = self.frontier[row] if row < len(self.frontier) else -1
        return [self.tokens[n] for n in branch(self.parents, node)]


class RSDTree(Proposer):
    """A tree whose siblings are drawn without replacement, for `RecursiveRejection` alone.

    Args:
        drafter, affinity, dynamic_tokens, full_head: as in `DrafterTree`.
        branching: how many children each node gets, one number for each level (RSD-C). None:
            stochastic beam search (RSD-S).
        width: the nodes of a level, of a beam search.
        passes: the levels, of a beam search.

    At temperature 0 the likeliest tokens or branches take the place of drawn ones.
    """

    def __init__(
        self,
        drafter: TreeModel,
        affinity: Affinity,
        *,
        branching: Sequence[int] | None = None,
        width: int = 2,
        passes: int = 4,
        dynamic_tokens: DynamicTokens | None = None,
        full_head: TokenHead | None = None,
    ) -> None:
        self.drafter, self.affinity = drafter, affinity
        self.branching, self.width = branching, width
        self.passes = passes if branching is None else len(branching)
        self.dynamic_tokens, self.full_head = dynamic_tokens, full_head

    @property
    def drawn_with(self) -> Affinity:
        """As `Proposer.drawn_with`."""
        return self.affinity

    def reset(self, batch_size: int) -> None:
        """As `Proposer.reset`."""
        self.drafter.reset(batch_size)

    def rollback(self, lengths: Sequence[int]) -> None:
        """As `Proposer.rollback`."""
        self.drafter.rollback(lengths)

    def observe(self, states: Sequence[Tensor] | None) -> None:
        """As `Proposer.observe`."""
        if isinstance(self.drafter, StateDrafter) and states is not None:
            self.drafter.observe(states)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        """As `Proposer.propose`."""
        trees = [_Grown(levels) for levels in self._levels(sequences, step)]
        for tree in trees:
            tree.frontier = [-1] if tree.levels > 0 else []
        keys = functional.step_keys(step.seeds, step.positions).tolist()
        noise = [
            None if greedy else torch.Generator().manual_seed(key)
            for key, greedy in zip(keys, (step.temperature == 0).tolist(), strict=True)
        ]
        beams: list[Beam | None] = [None] * len(trees)
        levels: list[Tensor] = []
        while any(tree.frontier for tree in trees):
            q = self._q(sequences, trees, self._read(sequences, trees), step)
            first_row = sum(level.shape[1] for level in levels)
            for b, tree in enumerate(trees):
                if tree.frontier:
                    log_q = q[b, : len(tree.frontier)].log()
                    drawn = self._drawn(log_q, noise[b], beams[b], len(levels))
                    tokens, above, beams[b] = drawn
                    tree.add(tokens, above, first_row, len(levels))
            levels.append(q)
        if not levels:
            return Proposal.fixed([[] for _ in trees], step)
        return self._packed(trees, levels, step)

    def _levels(self, sequences: Sequence[Continuation], step: Step) -> list[int]:
        """How deep each tree may be: the drafter has to read all that precedes a node."""
        context, drafter = self.drafter.context, self.drafter
        levels = [
            int(min(self.passes, room - 1, context - s.length + 1))
            for s, room in zip(sequences, step.room, strict=True)
        ]
        if not isinstance(drafter, StateDrafter):
            return levels
        known = zip(levels, drafter.observed, sequences, strict=True)
        return [n if 0 < s.length - 1 <= observed else 0 for n, observed, s in known]

    def _read(self, sequences: Sequence[Continuation], trees: Sequence[_Grown]) -> Output:
        """The drafter's rows after the nodes of each frontier."""
        keep = [len(tree.frontier) for tree in trees]
        if not any(tree.read for tree in trees):
            return feed_unread(self.drafter, sequences, keep)
        tokens = [[tree.tokens[n] for n in tree.frontier] for tree in trees]
        return self.drafter.feed_tree(tokens, keep, [tree.parents[: tree.read] for tree in trees])

    def _q(
        self, sequences: Sequence[Continuation], trees: Sequence[_Grown], output: Output, step: Step
    ) -> Tensor:
        """`[B, n, V_t]` float64; of greedy sequences at temperature 1."""
        given: dict[str, Any] = dict(step.limits)
        if self.dynamic_tokens is not None and self.full_head is not None:
            assert output.hidden is not None  # dynamic tokens are asked of a drafter that has them
            columns = []
            for row, hidden in enumerate(output.hidden.unbind(1)):
                pairs = zip(sequences, trees, strict=True)
                contexts = [s.tokens + tree.path(row) for s, tree in pairs]
                columns.append(
                    dynamic_columns(self.dynamic_tokens, self.full_head, contexts, hidden)
                )
            tokens, logits = (torch.stack(part, 1) for part in zip(*columns, strict=True))
            given |= {"dynamic_tokens": tokens, "dynamic_logits": logits.to(output.logits)}
        temperature = step.temperature.masked_fill(step.temperature == 0, 1.0)
        q = functional.redistribute(output.logits, self.affinity, temperature, **given)
        return q.double()

    def _drawn(
        self, log_q: Tensor, source: torch.Generator | None, beam: Beam | None, level: int
    ) -> tuple[list[int], list[int], Beam | None]:
        """Tokens behind the rows `[n, V_t]` of a sequence, and which row each belongs to."""
        noise = None
        if source is not None:
            uniform = torch.empty(log_q.shape, dtype=log_q.dtype, device="cpu")
            noise = -uniform.exponential_(generator=source).log_().to(log_q.device)
        if self.branching is None:
            beam = Beam.root(log_q) if beam is None else beam
            beam = beam_search_step(log_q, beam, noise, self.width)
            beam = Beam(*(part[beam.tokens >= 0] for part in beam))
            return beam.tokens.tolist(), beam.parents.tolist(), beam
        noise = torch.zeros_like(log_q) if noise is None else noise
        tokens = gumbel_top_k(log_q, noise, self.branching[level])
        rows, at = (tokens >= 0).nonzero(as_tuple=True)
        return tokens[rows, at].tolist(), rows.tolist(), None

    def _packed(self, trees: Sequence[_Grown], levels: list[Tensor], step: Step) -> Proposal:
        """All nodes; the draft's logits are the logarithms of q over target tokens."""
        device = self.affinity.device
        tokens = padded([tree.tokens for tree in trees], device)
        parents = padded([tree.parents for tree in trees], device)
        rows = padded([tree.rows for tree in trees], device)
        draft = Draft.without_distribution(tokens, seeds=step.seeds, positions=step.positions)
        return Proposal(tokens, replace(draft, logits=torch.cat(levels, 1).log()), parents, rows)


class RecursiveRejection:
    """The rule for an `RSDTree`: `decoder.rule = RecursiveRejection()`."""

    def __call__(
        self, output: Output, proposal: Proposal, step: Step, logprobs: Logprobs, **limits: Any
    ) -> Decided:
        """As `Rule`, without log-probabilities.

        Raises:
            ValueError: log-probabilities, a mask, or nodes that no row belongs to.
        """
        told = proposal.rows is not None or proposal.tokens.shape[1] == 0
        if logprobs is not None or "allowed" in limits or not told:
            raise ValueError(
                "RecursiveRejection: judges the trees of an RSDTree, without logprobs and allowed; "
                "leave those out, or use DrafterTree with the decoder's own rule"
            )
        size, device = output.logits.shape[2], output.logits.device
        alike = Affinity.intersection(Vocabulary.identity(size)).to(device)
        p = functional.redistribute(output.logits, alike, step.temperature, **limits).double()
        tokens, parents, rows, q = proposal.tokens, proposal.parents, proposal.rows, p
        if parents is None or rows is None or proposal.draft.logits is None:
            tokens = parents = rows = tokens.new_full((len(tokens), 1), -1)
        else:
            q = proposal.draft.logits.exp()
        keys = functional.step_keys(step.seeds, step.positions, stage=1).tolist()
        deep = depths(parents).masked_fill(tokens < 0, -1).amax(1) + 1
        uniforms = p.new_zeros(len(keys), int(deep.max()) + 1, tokens.shape[1] + 1)
        sizes = zip(keys, deep.tolist(), (tokens >= 0).sum(1).tolist(), strict=True)
        for own, (key, levels, nodes) in zip(uniforms, sizes, strict=True):
            source = torch.Generator().manual_seed(key)
            drawn = torch.rand(levels + 1, nodes + 1, dtype=p.dtype, generator=source)
            own[: levels + 1, : nodes + 1] = drawn
        put, path = verify_rsd(p, q, tokens, parents, rows, uniforms)
        lengths = (path >= 0).sum(1).tolist()
        found = zip(put.tolist(), path.tolist(), lengths, strict=True)
        pairs = [(own[: n + 1], nodes[:n]) for own, nodes, n in found]
        return Decided([own for own, _ in pairs], [[] for _ in pairs], [way for _, way in pairs])
