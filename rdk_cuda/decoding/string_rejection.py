"""String-level rejection sampling with bounded lookahead (DESIGN, "Different tokenizers")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..affinity import Affinity
from ..vocabulary.text_tokens import incomplete
from .generation import Continuation
from .models import Output
from .proposal import Proposal, Step
from .proposers import DrafterChain
from .text import TextDrafter


class StringRejection(DrafterChain):
    """String-level rejection sampling (SLRS, arXiv:2502.05202): target tokens by their strings.

    psi(x) is the probability that the drafter's text goes on with x. It is summed over one token of
    the drafter's: the next one, or the one that the newest target tokens may be the beginning of.
    The former go through an affinity, each to what the target's tokenizer makes of it first. The
    latter are dynamic columns with logits T log psi, from the row before the drafter's newest one.

    Args:
        drafter: reads the target's text; with all of its own tokens, not pruned.
        target_size: V_t.
        columns: the most tokens that are taken for such a continuation.
        options: as of `DrafterChain`, without dynamic tokens.

    Raises:
        ValueError: a drafter whose columns are not its own tokens.
    """

    def __init__(
        self, drafter: TextDrafter, target_size: int, *, columns: int = 64, **options: Any
    ) -> None:
        size, target = drafter.vocabulary_size, drafter.target_tokens
        if drafter.own.row_top.tolist() != list(range(size)):
            raise ValueError(
                "StringRejection: drafter is pruned, so its columns are not its tokens; needs one "
                "with its whole head, or `between`"
            )
        rule = drafter.between(target_size)
        tops: list[int] = rule.row_top.tolist()
        rows: list[dict[int, float]] = [{top: 1.0} if top >= 0 else {} for top in tops]
        going_on: defaultdict[tuple[bytes, ...], list[tuple[int, int]]] = defaultdict(list)
        for own, spelling in enumerate(drafter.spellings):
            if not isinstance(spelling, bytes) or incomplete(spelling):
                continue
            ids = target.encode(spelling)
            rows[own] = {ids[0]: 1.0}
            pieces = tuple(target.spellings[id] for id in ids)
            for at in range(1, len(ids)):
                going_on[pieces[:at]].append((own, ids[at]))  # type: ignore[index]
        affinity = Affinity.from_rows(rows, target_size=target_size, bias=rule.bias)
        super().__init__(drafter, affinity.to(drafter.device), **options)
        self.text, self.columns = drafter, columns
        self._going_on = {
            pieces: torch.tensor(found, dtype=torch.int64, device=drafter.device).T
            for pieces, found in going_on.items()
        }

    def reset(self, batch_size: int) -> None:
        """As `Proposer.reset`."""
        self.text.look_back = True
        super().reset(batch_size)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        """As `Proposer.propose`."""
        self._temperature: Tensor = self.first_link(step)["temperature"]
        return super().propose(sequences, step)

    def dynamic_of(self, sequences: object, output: Output, **of: Any) -> dict[str, Any]:
        """Columns for the drafter's tokens that begin with what its newest one spells.

        Their psi, next to the newest token's psi, which the row behind it shares out.
        """
        logits = output.logits[:, 0].float()
        shape = len(logits), self.columns
        tokens = torch.full(shape, -1, dtype=torch.int32, device=logits.device)
        added = logits.new_zeros(shape)
        for b, (before, newest, pieces) in self.text.newest().items():
            found = self._going_on.get(pieces)
            if found is None:
                continue
            at = float(self._temperature[b])
            seen = logits[b].masked_fill(self.affinity.bias == -torch.inf, -torch.inf)
            whole = at * (seen / at).logsumexp(0) if at else seen.max()
            psi = before[found[0]].float() + whole - before[newest].float()
            best = psi.topk(min(self.columns, len(psi)))
            tokens[b, : len(best.values)] = found[1][best.indices].int()
            added[b, : len(best.values)] = best.values
        return {"dynamic_tokens": tokens, "dynamic_logits": added.to(output.logits)}
