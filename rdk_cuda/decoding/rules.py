"""Rules that decide a proposal: how many of its tokens are accepted, and which one follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from .. import functional
from ..affinity import Affinity
from ..functional import Method
from .models import Output
from .proposal import Proposal, Step

Logprobs = Literal["processed", "raw"] | None


class Decided(NamedTuple):
    """The tokens that each sequence gains.

    Attributes:
        tokens: its accepted tokens and one more, which is -1 if the target's logits there are no
            distribution.
        logprobs: of these tokens; empty if they were not asked for.
        paths: its accepted nodes, of a tree.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    paths: list[list[int]] | None = None


class Rule(Protocol):
    """Decide a proposal so that the output has the target's distribution."""

    def __call__(
        self, output: Output, proposal: Proposal, step: Step, logprobs: Logprobs, **limits: Any
    ) -> Decided:
        """Judge a step.

        Args:
            output: the target's, rows `[B, N + 1]`, after each sequence and after each node.
            proposal: its nodes.
            step: the step.
            logprobs: as in `rdk_cuda.verify`.
            limits: `top_k`, `top_p`, `min_p` and `allowed`, as far as they are given.
        """
        ...


@dataclass(frozen=True)
class Verification:
    """The operators' own rules: `rdk_cuda.verify` by token or by block, `verify_tree` for trees.

    Attributes:
        affinity: the one that was drafted with.
        method: of chains.
    """

    affinity: Affinity
    method: Method = "token"

    def __call__(
        self, output: Output, proposal: Proposal, step: Step, logprobs: Logprobs, **limits: Any
    ) -> Decided:
        logits = output.logits
        if proposal.parents is not None:
            return self._walk(logits, proposal, step, logprobs, **limits)
        if proposal.rows is not None:
            limits["draft_rows"] = proposal.rows
        draft, proposed = proposal.draft, proposal.tokens
        if proposed is not draft.tokens:
            same = proposed.shape == draft.tokens.shape
            draft = draft.proposing(proposed) if same else replace(draft, tokens=proposed)
        verified = functional.verify(
            logits,
            draft,
            self.affinity,
            step.temperature,
            logprobs=logprobs,
            **limits,
            method=self.method,
        )
        lengths = verified.num_accepted.tolist()
        rows = zip(verified.tokens.tolist(), lengths, strict=True)
        tokens = [row[: length + 1] for row, length in rows]
        return Decided(tokens, verified.logprobs.tolist() if logprobs else [[] for _ in tokens])

    def _walk(
        self, logits: Tensor, proposal: Proposal, step: Step, logprobs: Logprobs, **limits: Any
    ) -> Decided:
        assert proposal.parents is not None
        drafted: dict[str, Any] = {"seeds": step.seeds, "positions": step.positions}
        if proposal.draft.logits is not None:
            drafted = {"draft": proposal.draft, "draft_rows": proposal.rows}
            drafted |= {"affinity": self.affinity, "method": self.method}
        walked = functional.verify_tree(
            logits, proposal.tokens, proposal.parents, step.temperature, **drafted, **limits
        )
        found = zip(walked.tokens.tolist(), walked.path.tolist(), strict=True)
        ends = walked.num_accepted.tolist()
        pairs = [(row[: n + 1], path[:n]) for (row, path), n in zip(found, ends, strict=True)]
        tokens, paths = [row for row, _ in pairs], [path for _, path in pairs]
        if logprobs is None:
            return Decided(tokens, [[] for _ in tokens], paths)
        rows = torch.cat([walked.path.new_zeros(len(ends), 1), walked.path + 1], 1)
        deep = max(ends) + 1
        own, rows = walked.tokens[:, :deep], rows[:, :deep].long()
        drawn = self._logprobs(own, rows, logits, proposal, step, logprobs, limits)
        return Decided(tokens, drawn, paths)

    def _logprobs(
        self,
        tokens: Tensor,
        rows: Tensor,
        logits: Tensor,
        proposal: Proposal,
        step: Step,
        logprobs: Logprobs,
        limits: dict[str, Any],
    ) -> list[list[float]]:
        """Of a path's tokens, in whose rows `verify` without drafts draws some token.

        Where that is another one, their logits say how much likelier it is. A sequence without
        nodes has its own token drawn, so that its bits are those of a batch without any tree.
        """
        batch, deep = rows.shape

        def each(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(deep)

        def along(tensor: Tensor) -> Tensor:
            wide = rows[:, :, None].expand(-1, -1, tensor.shape[2])
            return tensor.gather(1, wide).flatten(0, 1)[:, None]

        positions = (step.positions[:, None] + torch.arange(deep, device=rows.device)).flatten()
        draft = replace(
            proposal.draft,
            tokens=rows.new_empty(batch * deep, 0),
            temperature=each(proposal.draft.temperature),
            step_keys=each(proposal.draft.step_keys),
            positions=positions,
        )
        given: dict[str, Any] = {
            name: along(v) if name == "allowed" else each(v) for name, v in limits.items()
        }
        if draft.logits is not None:  # otherwise the walk was by token
            given["method"] = self.method
        on_path, temperature = along(logits), each(step.temperature)
        drawn = functional.verify(
            on_path, draft, self.affinity, temperature, logprobs=logprobs, **given
        )
        scale = torch.ones_like(temperature) if logprobs == "raw" else temperature
        both = torch.cat([drawn.tokens[:, :1], tokens.reshape(-1, 1)], 1).clamp(min=0)
        z = on_path[:, 0].gather(1, both).float() / scale.masked_fill(scale == 0, 1.0)[:, None]
        less = (z[:, :1] - z[:, 1:]).masked_fill(both[:, :1] == both[:, 1:], 0.0)
        found: list[list[float]] = (drawn.logprobs - less).view(batch, deep).tolist()
        return found
