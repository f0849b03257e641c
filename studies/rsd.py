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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import functional
from rdk_cuda.affinity import Affinity
from rdk_cuda.decoding.drafter_tree import DrafterTree, _contexts, _Growing, _Node
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.models import Output, TreeModel
from rdk_cuda.decoding.proposal import Proposal, Step, padded
from rdk_cuda.decoding.rules import Decided, Logprobs
from rdk_cuda.decoding.trees import depths
from rdk_cuda.dynamic_tokens import Contexts
from rdk_cuda.functional import Draft
from rdk_cuda.reference import Beam, beam_search_step, gumbel_top_k, verify_rsd
from rdk_cuda.vocabulary import Vocabulary

__all__ = ["RSDTree", "RecursiveRejection"]


class RSDTree(DrafterTree):
    """A tree whose siblings are drawn without replacement, for `RecursiveRejection` alone.

    Args:
        drafter, affinity, others: as of `DrafterTree`.
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
        **others: Any,
    ) -> None:
        passes = passes if branching is None else len(branching)
        super().__init__(drafter, affinity, width=width, passes=passes, **others)
        self.branching = branching

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        """As `Proposer.propose`."""
        trees = [_Growing(levels) for levels in self._places(sequences, step)]
        for tree in trees:
            tree.frontier = [-1] if tree.levels > 0 else []
        link = self._first_link(step)
        keys = functional.step_keys(step.seeds, step.positions).tolist()
        noise = [
            None if greedy else torch.Generator().manual_seed(key)
            for key, greedy in zip(keys, (link["temperature"] == 0).tolist(), strict=True)
        ]
        beams: list[Beam | None] = [None] * len(trees)
        levels: list[Tensor] = []
        while any(tree.frontier for tree in trees):
            output = self._read(sequences, trees)
            q = self._q(output, partial(_contexts, sequences, trees), link)
            first_row = sum(level.shape[1] for level in levels)
            for b, tree in enumerate(trees):
                if tree.frontier:
                    log_q = q[b, : len(tree.frontier)].log()
                    drawn = self._drawn(log_q, noise[b], beams[b], len(levels))
                    tokens, above, beams[b] = drawn
                    self._add(tree, tokens, above, first_row, len(levels))
            levels.append(q)
        if not levels:
            return Proposal.fixed([[] for _ in trees], step)
        return self._packed(trees, levels, step)

    def _q(
        self, output: Output, contexts: Callable[[int], Contexts], link: dict[str, Any]
    ) -> Tensor:
        """`[B, n, V_t]` float64; of greedy sequences at temperature 1."""
        given = self._dynamic_of_rows(contexts, output)
        given |= {name: link[name] for name in ("top_k", "top_p", "min_p") if name in link}
        temperature = link["temperature"].masked_fill(link["temperature"] == 0, 1.0)
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

    def _add(
        self, tree: _Growing, tokens: list[int], above: list[int], first_row: int, level: int
    ) -> None:
        first = len(tree.nodes)
        for token, row in zip(tokens, above, strict=True):
            tree.nodes.append(_Node(token, tree.frontier[row], first_row + row, 0.0))
        grown = range(first, len(tree.nodes))
        tree.frontier = list(grown) if level + 1 < tree.levels else []
        tree.read += tree.frontier

    def _packed(self, trees: Sequence[_Growing], levels: list[Tensor], step: Step) -> Proposal:
        """All nodes; the draft's logits are the logarithms of q over target tokens."""
        device = self.affinity.device
        tokens = padded([[node.token for node in tree.nodes] for tree in trees], device)
        parents = padded([[node.parent for node in tree.nodes] for tree in trees], device)
        rows = padded([[node.row for node in tree.nodes] for tree in trees], device)
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
