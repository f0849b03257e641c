"""Proposers of the tokens of a step: the protocol, n-grams, and a drafter's chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import functional
from .._ops.contract import LIMITS
from .._ops.inputs import check_shape, one_number
from ..affinity import Affinity
from ..dynamic_tokens import DynamicTokens, Followed, TokenHead, dynamic_columns
from ..functional import Draft, StepRows
from ..ranges import Range
from .generation import Continuation
from .lengths import Drafted, Length
from .models import CausalModel, Output, StateDrafter, feed_unread
from .proposal import Proposal, Step, padded

_LONGEST, _SEARCHED = 3, 1024  # of an n-gram, and of the last tokens


class Proposer:
    """Propose tokens that may follow each sequence: none. To write one, inherit, and propose some.

    It may go by anything but one thing (DESIGN section 5): whether a position is drafted, and its
    q, may not depend on the token drawn there. A sequence's proposal may not depend on others.
    """

    @property
    def drawn_with(self) -> Affinity | None:
        """The affinity that tokens are drawn with; None if all are fixed."""
        return None

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        """Propose tokens after the decided ones of each sequence, less than `step.room[b]` deep."""
        return Proposal.fixed([[] for _ in sequences], step)

    def observe(self, states: Sequence[Tensor] | None) -> None:
        """Take the target's states of all tokens that it has read in this step, if it gives any.

        Those of `feed`, rejected drafts included, or of a tree's accepted nodes alone.
        """

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b had beyond `lengths[b]` tokens, all decided but the newest."""


class NGrams(Proposer):
    """Copy what followed the longest n-gram of newest tokens when it last occurred in the text.

    Args:
        draft_length: the most tokens that are copied.
    """

    def __init__(self, draft_length: int = 8) -> None:
        self.draft_length = draft_length

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        copied = [
            self._copied(s.tokens[-_SEARCHED:]) if room > 1 else []
            for s, room in zip(sequences, step.room, strict=True)
        ]
        return Proposal.fixed(copied, step)

    def _copied(self, tokens: list[int]) -> list[int]:
        for n in range(_LONGEST, 0, -1):
            for start in range(len(tokens) - n - 1, -1, -1):
                if tokens[start : start + n] == tokens[-n:]:
                    return tokens[start + n :][: self.draft_length]
        return []


class DrafterChain(Proposer):
    """Up to K tokens of a drafter, drawn one after the other.

    Args:
        drafter: predicts V_d tokens; a `StateDrafter`, too.
        affinity: V_d to V_t, on the drafter's device.
        draft_length: K.
        length: ends drafts before that.
        draft_temperature, truncate_drafts, dynamic_tokens, full_head: as in `SpeculativeDecoder`.

    Where the drafter has an attribute `readable`, of the first token id that it cannot read, no
    sequence drafts behind such a token.

    Raises:
        ValueError: an affinity, a temperature or a full head that does not fit, or a drafter that
            could draft what it cannot read.
    """

    def __init__(
        self,
        drafter: CausalModel,
        affinity: Affinity,
        *,
        draft_length: int = 4,
        length: Length | None = None,
        draft_temperature: float | None = None,
        truncate_drafts: bool = True,
        dynamic_tokens: DynamicTokens | None = None,
        full_head: TokenHead | None = None,
    ) -> None:
        if draft_temperature is not None:
            draft_temperature = one_number("DrafterChain", "draft_temperature", draft_temperature)
        if drafter.vocabulary_size != affinity.draft_size:
            raise ValueError(
                f"{type(self).__name__}: drafter predicts {drafter.vocabulary_size} tokens, and "
                f"the affinity leads from {affinity.draft_size}; needs this drafter's affinity, "
                "or, without one, a drafter that predicts as many tokens as the target"
            )
        if draft_length > (places := getattr(drafter, "places", math.inf)):
            raise ValueError(
                f"{type(self).__name__}: draft_length is {draft_length}; needs at most {places}, "
                f"as many as {type(drafter).__name__} drafts in a step"
            )
        self.drafter, self.affinity = drafter, affinity
        self._readable: float = getattr(drafter, "readable", math.inf)
        self._refuse_unreadable(affinity, dynamic_tokens)
        self.draft_length, self.length = draft_length, length
        self.draft_temperature, self.truncate_drafts = draft_temperature, truncate_drafts
        self.dynamic_tokens = dynamic_tokens
        self.full_head = self._checked_full_head(full_head)
        self._state_drafter = drafter if isinstance(drafter, StateDrafter) else None
        self._rows: StepRows | None = None
        # For each row the source, and how many tokens of each sequence it has read for good.
        self._followed: dict[int, tuple[Followed, list[int]]] = {}

    @property
    def drawn_with(self) -> Affinity | None:
        return self.affinity

    def reset(self, batch_size: int) -> None:
        self.drafter.reset(batch_size)
        self._rows = None
        self._followed = {}

    def rollback(self, lengths: Sequence[int]) -> None:
        self.drafter.rollback(lengths)
        for _, read in self._followed.values():
            read[:] = map(min, read, lengths)

    def observe(self, states: Sequence[Tensor] | None) -> None:
        if self._state_drafter is None:
            return
        if states is None:
            raise ValueError(
                "DrafterChain: the drafter reads the target's hidden states, but its feed() "
                "returned none (HuggingFaceModel: state_layers=drafter.state_layers)"
            )
        self._state_drafter.observe(states)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        places, link = self._places(sequences, step), self.first_link(step)
        most = max(places, default=0)
        seen, newest = Drafted(self.affinity), list[list[int]]()
        keep = [int(own > 0) for own in places]
        alike = self.length is None and min(places, default=0) == most
        for place in range(most):
            with Range("drafter forward", sum(keep)):
                if place == 0:
                    output = feed_unread(self.drafter, sequences, keep)
                else:
                    output = self.drafter.feed(newest, keep)
            dynamic = self.dynamic_of(sequences, output)
            if place == 0:
                link["rows"] = self._rows_for(output.logits, most, dynamic, link)
            with Range("draft", sum(keep)):
                drafted = functional.draft(output.logits[:, 0], self.affinity, **link, **dynamic)
            seen.places.append(drafted)
            link = {"after": drafted}
            newest = drafted.tokens.tolist()
            if alike and min(newest)[0] >= 0:
                for s, new in zip(sequences, newest, strict=True):
                    s.context += new
                continue
            alike, goes_on = False, [True] * len(places)
            if self.length is not None and place + 1 < most:
                goes_on = self.length(seen).tolist()
            for b, new in enumerate(newest):
                drawn = keep[b] and new[0] >= 0  # -1, no distribution here: this draft ends
                keep[b] = int(drawn and goes_on[b] and places[b] > place + 1)
                if drawn:
                    sequences[b].context += new
                if not keep[b]:
                    newest[b] = []
            if not any(keep):
                break
        chains = [s.context[s.length :] for s in sequences]
        longest = max(map(len, chains), default=0)
        if longest == 0:
            return Proposal.fixed(chains, step)
        draft = Draft.join(seen.places[:longest])
        tokens = draft.tokens
        if min(map(len, chains)) < longest:
            tokens = padded(chains, self.affinity.device)
            draft = draft.proposing(tokens)
        return Proposal(tokens, draft)

    def _places(self, sequences: Sequence[Continuation], step: Step) -> list[int]:
        longest, most = int(min(self.drafter.context, 2**62)) + 1, self.draft_length
        places = [
            min(most, room - 1, longest - s.length) if reads else 0
            for s, room, reads in zip(sequences, step.room, self.reads(sequences), strict=True)
        ]
        if self._state_drafter is None:
            return places
        known = zip(places, self._state_drafter.observed, sequences, strict=True)
        return [n if 0 < s.length - 1 <= observed else 0 for n, observed, s in known]

    def reads(self, sequences: Sequence[Continuation]) -> list[bool]:
        """Whether the drafter can read all tokens of a sequence: it has those before `lengths`."""
        if self._readable == math.inf:
            return [True] * len(sequences)
        return [
            max(s.context[known:], default=0) < self._readable
            for s, known in zip(sequences, self.drafter.lengths, strict=True)
        ]

    def first_link(self, step: Step) -> dict[str, Any]:
        """Return the arguments of `functional.draft` at a step's first place."""
        temperature, own = step.temperature, self.draft_temperature
        if own is not None:
            temperature = torch.full_like(temperature, own)
        link = {"seeds": step.seeds, "positions": step.positions, "temperature": temperature}
        return link | step.limits if self.truncate_drafts else link

    def _rows_for(
        self, like: Tensor, places: int, dynamic: dict[str, Tensor], link: dict[str, Any]
    ) -> StepRows:
        """Where a step is drafted into: the same memory in every step that it fits."""
        width = dynamic["dynamic_tokens"].shape[1] if dynamic else 0
        limited, rows = not link.keys().isdisjoint(LIMITS), self._rows
        form = like.shape[::2], like.dtype, width, limited
        if rows is None or rows.places < places or rows.form != form:
            self._rows = rows = StepRows(
                self.affinity,
                len(like),
                max(places, self.draft_length),
                dtype=like.dtype,
                dynamic_width=width,
                limited=limited,
            )
        return rows

    def dynamic_of(
        self, sequences: Sequence[Continuation], output: Output, *, row: int = 0, paths: Any = None
    ) -> dict[str, Any]:
        """Name what the drafter's row brings along, if anything.

        Args:
            paths: the tokens that follow each sequence's decided ones there; None: its drafts.
        """
        if self.dynamic_tokens is None or self.full_head is None:
            return {}
        if output.hidden is None:
            raise ValueError(
                "DrafterChain: dynamic_tokens need the drafter's hidden states (return_hidden=True)"
            )
        followed, read = self._followed.get(row, (None, []))
        if followed is None or followed.sources[0] is not self.dynamic_tokens:
            followed, read = Followed(self.dynamic_tokens, len(sequences)), [0] * len(sequences)
        ends = [len(s.context) if paths is None else s.length for s in sequences]
        own = zip(sequences, read, ends, paths or [[]] * len(sequences), strict=True)
        followed.read(read, [s.context[start:end] + path for s, start, end, path in own])
        self._followed[row] = followed, ends
        hidden = output.hidden[:, row]
        tokens, gathered = dynamic_columns(followed, self.full_head, followed.contexts, hidden)
        like = output.logits
        return {"dynamic_tokens": tokens.to(like.device), "dynamic_logits": gathered.to(like)}

    def _dynamic_of_rows(
        self, sequences: Sequence[Continuation], paths: Callable[[int], Any], output: Output
    ) -> dict[str, Any]:
        """The same of all rows `[B, n]`; paths are those of a row, asked for if needed."""
        if self.dynamic_tokens is None:
            return {}
        rows = range(output.logits.shape[1])
        found = [self.dynamic_of(sequences, output, row=row, paths=paths(row)) for row in rows]
        for each in found:
            name, (tokens, _) = f"{type(self).__name__}: dynamic_tokens", each.values()
            check_shape(name, tokens, *found[0]["dynamic_tokens"].shape)
        return {name: torch.stack([each[name] for each in found], 1) for name in found[0]}

    def _refuse_unreadable(
        self, affinity: Affinity, dynamic_tokens: DynamicTokens | None = None
    ) -> None:
        """Tokens that are drawn with this and that the drafter could not read next."""
        size, readable = affinity.target_size, int(min(self._readable, 2**31))
        if readable >= size:
            return
        reached = int(affinity.col_offsets[readable]) < affinity.col_drafts.numel() or bool(
            affinity.prior[:, readable:].any()
        )
        if reached or dynamic_tokens is not None:
            raise ValueError(
                f"{type(self).__name__}: drafter is a {type(self.drafter).__name__} that reads ids "
                f"in [0, {readable}), and the affinity or dynamic tokens lead to {size} target "
                "tokens; needs an affinity to what the drafter reads, and no dynamic_tokens"
            )

    def _checked_full_head(self, full_head: TokenHead | None) -> TokenHead | None:
        if full_head is None and self.dynamic_tokens is None:
            return None
        full_head = full_head or getattr(self.drafter, "full_head", None)
        if full_head is None:
            raise ValueError(
                "DrafterChain: dynamic_tokens need the full head for their logits, and the "
                "drafter has none of its own; pass full_head=(weight [V_t, d], bias or None)"
            )
        rows = full_head[0].shape[0] if isinstance(full_head, tuple) else full_head.size
        if rows != self.affinity.target_size:
            raise ValueError(
                f"DrafterChain: full_head has {rows} rows; needs one for each of the "
                f"{self.affinity.target_size} target tokens"
            )
        return full_head
