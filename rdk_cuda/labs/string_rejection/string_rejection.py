"""String-level rejection sampling with bounded lookahead."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ...affinity import Affinity
from ...decoding.generation import Continuation
from ...decoding.models import CausalModel, Output
from ...decoding.proposal import Proposal, Step
from ...decoding.proposers import DrafterChain
from ...decoding.text import TextDrafter
from ...vocabulary.text_tokens import incomplete

COLUMNS = 64
"""The most tokens that continue what the newest target tokens may be the beginning of."""


class StringRejection(DrafterChain):
    """String-level rejection sampling (SLRS, arXiv:2502.05202): target tokens by their strings.

    psi(x) is the probability that the drafter's text goes on with x. It is summed over one token of
    the drafter's: the next one, or the one that the newest target tokens may be the beginning of.
    The former go through an affinity, each to what the target's tokenizer makes of it first. The
    latter are dynamic columns with logits T log psi, from the row before the drafter's newest one.

    Args:
        drafter: reads the target's text; with all of its own tokens, not pruned.
        target_size: V_t.
        options: as in `DrafterChain`, without dynamic tokens.

    Raises:
        ValueError: a drafter whose columns are not its own tokens.
    """

    def __init__(self, drafter: TextDrafter, target_size: int, **options: Any) -> None:
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
        self.text = copy(drafter)
        self.text.drafter = self._both = _BothRows(drafter.drafter)
        super().__init__(self.text, affinity.to(drafter.device), **options)
        self._going_on = {
            pieces: torch.tensor(found, dtype=torch.int64, device=drafter.device).T
            for pieces, found in going_on.items()
        }

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        self._temperature: Tensor = self.first_link(step)["temperature"]
        return super().propose(sequences, step)

    def dynamic_of(self, sequences: object, output: Output, **of: Any) -> dict[str, Any]:
        """Columns for the drafter's tokens that begin with what its newest one spells.

        Their psi, next to the newest token's psi, which the row behind it shares out.
        """
        logits = output.logits[:, 0].float()
        shape = len(logits), COLUMNS
        tokens = torch.full(shape, -1, dtype=torch.int32, device=logits.device)
        added = logits.new_zeros(shape)
        for b, before, newest, pieces in self._newest():
            found = self._going_on.get(pieces)
            if found is None:
                continue
            at = float(self._temperature[b])
            seen = logits[b].masked_fill(self.affinity.bias == -torch.inf, -torch.inf)
            whole = at * (seen / at).logsumexp(0) if at else seen.max()
            psi = before[found[0]].float() + whole - before[newest].float()
            best = psi.topk(min(COLUMNS, len(psi)))
            tokens[b, : len(best.values)] = found[1][best.indices].int()
            added[b, : len(best.values)] = best.values
        return {"dynamic_tokens": tokens, "dynamic_logits": added.to(output.logits)}

    def _newest(self) -> Iterator[tuple[int, Tensor, int, tuple[bytes, ...]]]:
        """Yield, of sequences where they are known, the row of logits in front of the drafter's
        newest token, that token, and the target's tokens that spell it."""
        for b, row in self._both.before.items():
            text = self.text._texts[b]
            if not text._sees:
                continue
            start, end = text._own_ends[-2:]
            at = bisect_left(text._ends, start)
            pieces = [piece for piece in text.pieces[at:] if isinstance(piece, bytes)]
            whole = [text._ends[at], text._ends[-1]] == [start, end]
            if whole and len(pieces) == len(text.pieces) - at:
                yield b, row, text._own[-1], tuple(piece for piece in pieces if piece)


class _BothRows:
    """Have a drafter read the token before its newest again, if need be, and keep its row.

    Attributes:
        before: of sequences in the last pass, the row of logits in front of their newest token.
    """

    def __init__(self, drafter: CausalModel) -> None:
        self.drafter, self.device, self.context = drafter, drafter.device, drafter.context
        self.vocabulary_size = drafter.vocabulary_size
        self.before: dict[int, Tensor] = {}
        self._read: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        return list(map(len, self._read))

    def reset(self, batch_size: int) -> None:
        self.drafter.reset(batch_size)
        self._read = [[] for _ in range(batch_size)]

    def rollback(self, lengths: Sequence[int]) -> None:
        for read, length in zip(self._read, lengths, strict=True):
            del read[length:]

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        starts = [
            len(read) - (k > 0 and len(new) == 1 and len(read) > 0)
            for read, new, k in zip(self._read, tokens, keep, strict=True)
        ]
        self.drafter.rollback(starts)
        for read, new in zip(self._read, tokens, strict=True):
            read += new
        own = [read[start:] for read, start in zip(self._read, starts, strict=True)]
        rows = [min(len(new), 2) * k for new, k in zip(own, keep, strict=True)]
        output = self.drafter.feed(own, rows)
        self.before = {b: output.logits[b, 0] for b, count in enumerate(rows) if count == 2}
        places = [max(count - 1, 0) for count in rows]
        last = torch.tensor(places, dtype=torch.int64, device=output.logits.device)
        each = torch.arange(len(rows), device=output.logits.device)
        return Output(output.logits[each, last][:, None])
