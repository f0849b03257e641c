"""How the target reads a proposal, and what becomes of the nodes: of a chain, and of a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from .generation import Continuation
from .models import CausalModel, Output, TreeModel, feed_unread
from .proposal import Proposal, Step
from .rules import Decided
from .trees import branch

Hook = Callable[[Tensor], Tensor]
"""Called with logits `[B, n, V_t]` after each sequence and its first drafts, which are those in its
context; returns something `[B, n, W]` for each of these rows."""


class ChainReading:
    """Drafts that follow each sequence's tokens, one after the other.

    Attributes:
        nodes: how many each sequence has.
    """

    def __init__(self, proposal: Proposal, sequences: Sequence[Continuation], step: Step) -> None:
        self.proposal, self.sequences, self.step = proposal, sequences, step
        self.nodes = list[int]()
        for b, (s, row) in enumerate(zip(sequences, proposal.tokens.tolist(), strict=True)):
            drafts = row[: row.index(-1)] if -1 in row else row
            if drafts and len(drafts) >= step.room[b]:
                raise ValueError(
                    f"SpeculativeDecoder: {len(drafts)} tokens are proposed after sequence {b}, "
                    f"which has room for {step.room[b]} with the target's own; propose fewer"
                )
            s.context[s.length :] = drafts
            self.nodes.append(len(drafts))
        self.keep = [n + 1 if room else 0 for n, room in zip(self.nodes, step.room, strict=True)]
        most, (batch, width) = max(self.nodes, default=0), proposal.tokens.shape
        if most < width:  # places that no sequence uses
            rows = torch.arange(width, device=proposal.tokens.device).expand(batch, width)
            rows = rows if proposal.rows is None else proposal.rows
            tokens = proposal.tokens[:, :most]
            self.proposal = proposal._replace(tokens=tokens, rows=rows[:, :most])

    def feed(self, target: CausalModel) -> Output:
        """Return the target's logits after each sequence and after each of its drafts."""
        return feed_unread(target, self.sequences, self.keep)

    def hooked(self, hook: Hook, logits: Tensor) -> Tensor:
        """Call a hook once, for all rows."""
        return hook(logits)

    def judged(self, decided: Decided) -> list[int]:
        """Return how many drafts each sequence might have had accepted."""
        return self.nodes

    def observed(self, output: Output, decided: Decided) -> Sequence[Tensor] | None:
        """Return the target's states, of rejected drafts too."""
        return output.states

    def settle(self, target: CausalModel, decided: Decided) -> None:
        """Do nothing: a rollback to the accepted tokens is enough."""


class TreeReading:
    """Nodes that each sequence's newest token is the root of.

    What is not used, and what hangs below it, can never be accepted. Where used nodes follow, the
    target has to read it: as some token right below the root, which there is always room for.
    """

    def __init__(self, proposal: Proposal, sequences: Sequence[Continuation], step: Step) -> None:
        assert proposal.parents is not None
        self.sequences, self.step = sequences, step
        self.nodes, self.tokens, self.parents = [], [], []
        rows = zip(proposal.tokens.tolist(), proposal.parents.tolist(), step.room, strict=True)
        for tokens, parents, room in rows:
            for n, parent in enumerate(parents):
                # A child of no earlier node is never reached, nor is what hangs below it.
                if not -1 <= parent < n or (parent >= 0 and tokens[parent] < 0):
                    tokens[n] = -1
                if tokens[n] < 0:
                    parents[n] = -1
            used = [n + 1 for n, token in enumerate(tokens) if token >= 0] if room > 1 else []
            count = used[-1] if used else 0
            self.tokens.append(tokens[:count])
            self.parents.append(parents[:count])
            self.nodes.append(count)
        most = max(self.nodes)
        self.proposal = proposal._replace(
            tokens=proposal.tokens[:, :most],
            parents=proposal.parents[:, :most],
            rows=None if proposal.rows is None else proposal.rows[:, :most],
        )
        for s in sequences:
            del s.context[s.length :]

    def feed(self, target: CausalModel) -> Output:
        """Return the target's logits after each sequence and after each of its nodes."""
        if not isinstance(target, TreeModel):
            raise ValueError(
                "SpeculativeDecoder: a tree is proposed; needs a target that reads trees"
            )
        self.unread = [
            s.context[read:] if room else []
            for s, read, room in zip(self.sequences, target.lengths, self.step.room, strict=True)
        ]
        tokens = [
            before + [max(token, 0) for token in nodes]
            for before, nodes in zip(self.unread, self.tokens, strict=True)
        ]
        keep = [n + 1 if room else 0 for n, room in zip(self.nodes, self.step.room, strict=True)]
        return target.feed_tree(tokens, keep, self.parents)

    def hooked(self, hook: Hook, logits: Tensor) -> Tensor:
        """Call a hook for each branch, as for a chain."""
        branches = [self._branches(b) for b in range(len(self.nodes))]
        rows, found = max(self.nodes) + 1, None
        for turn in range(max(map(len, branches))):
            own = [each[turn] if turn < len(each) else [] for each in branches]
            for b, (s, nodes) in enumerate(zip(self.sequences, own, strict=True)):
                s.context[s.length :] = [self.tokens[b][node] for node in nodes]
            longest = max(map(len, own))
            # Rows behind a branch's end are answered, too, and thrown away.
            at = torch.tensor(
                [[0, *(n + 1 for n in each)] + [rows] * (longest - len(each)) for each in own],
                dtype=torch.int64,
                device=logits.device,
            )[:, :, None]
            own_rows = at.clamp(max=rows - 1).expand(-1, -1, logits.shape[2])
            answer = hook(logits.gather(1, own_rows))
            if found is None:
                found = answer.new_zeros(len(own), rows + 1, answer.shape[2])
            found.scatter_(1, at.to(answer.device).expand(-1, -1, answer.shape[2]), answer)
        for s in self.sequences:
            del s.context[s.length :]
        return cast(Tensor, found)[:, :rows]

    def judged(self, decided: Decided) -> list[int]:
        """Count the accepted nodes, and the children of the last of them if there are any."""
        return [
            len(path) + any(self._children(b, path[-1] if path else -1))
            for b, path in enumerate(self._paths(decided))
        ]

    def observed(self, output: Output, decided: Decided) -> Sequence[Tensor] | None:
        """Return the target's states of accepted nodes alone."""
        if output.states is None:
            return None
        return [
            states[[*range(len(before)), *(len(before) + node for node in path)]]
            for states, before, path in zip(
                output.states, self.unread, self._paths(decided), strict=True
            )
        ]

    def settle(self, target: CausalModel, decided: Decided) -> None:
        """Keep the accepted path in the target's cache."""
        cast(TreeModel, target).keep_paths(self._paths(decided))

    def _paths(self, decided: Decided) -> list[list[int]]:
        assert decided.paths is not None
        return [p if room else [] for p, room in zip(decided.paths, self.step.room, strict=True)]

    def _children(self, b: int, parent: int) -> list[bool]:
        tokens, parents = self.tokens[b], self.parents[b]
        return [token >= 0 and p == parent for token, p in zip(tokens, parents, strict=True)]

    def _branches(self, b: int) -> list[list[int]]:
        """The used nodes down to each leaf; one branch without nodes if there are none."""
        parents, inner = self.parents[b], set(self.parents[b])
        used = [node for node, token in enumerate(self.tokens[b]) if token >= 0]
        leaves = [node for node in used if node not in inner]
        return [branch(parents, node) for node in leaves] or [[]]


def reading_of(
    proposal: Proposal, sequences: Sequence[Continuation], step: Step, size: int
) -> ChainReading | TreeReading:
    """Choose how the target reads this proposal of tokens below V_t, its `size`.

    Others, such as those that its tokenizer has and its model has not, are not used: they could be
    neither read nor accepted. None is drawn, so that depends on no drawn token.
    """
    tokens = proposal.tokens
    proposal = proposal._replace(tokens=tokens.where((tokens >= 0) & (tokens < size), -1))
    kind = ChainReading if proposal.parents is None else TreeReading
    return kind(proposal, sequences, step)
