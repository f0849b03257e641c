"""Proposers for a drafter with another tokenizer (DESIGN section 2, "Different tokenizers")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import functional
from ..affinity import Affinity
from ..dynamic_tokens import screens_of
from ..ranges import Range
from ..vocabulary.text_tokens import incomplete
from .generation import Continuation
from .lengths import Drafted
from .models import feed_unread
from .proposal import Proposal, Step
from .proposers import DrafterChain
from .text import TextDrafter

_BEHIND = 64  # bytes of the context that are tokenised with a draft, about


class ExactMatch(DrafterChain):
    """String-level exact match (SLEM, arXiv:2502.05202): the drafter's text in the target's tokens.

    The drafter draws tokens of its own, and their text is proposed as fixed tokens of the target.

    Args:
        drafter: reads the target's text.
        draft_length: K, of the drafter's own tokens; the target's may be more or fewer.
        length, draft_temperature, truncate_drafts: as in `DrafterChain`.
    """

    def __init__(self, drafter: TextDrafter, **options: Any) -> None:
        if not isinstance(drafter, TextDrafter):
            raise TypeError(
                f"ExactMatch: drafter is a {type(drafter).__name__}; needs a TextDrafter"
            )
        super().__init__(drafter, drafter.own, **options)
        self.text = drafter

    @property
    def drawn_with(self) -> None:
        return None

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        going = [room > 1 for room in step.room]
        drawn: list[list[int]] = [[] for _ in sequences]
        seen, link = Drafted(self.affinity), self.first_link(step)
        spellings = self.text.spellings
        for place in range(self.draft_length):
            keep = list(map(int, going))
            if not any(keep):
                break
            with Range("drafter forward", sum(keep)):
                if place == 0:
                    output = feed_unread(self.text, sequences, keep)
                else:
                    newest = [own[-1:] if on else [] for own, on in zip(drawn, going, strict=True)]
                    output = self.text.feed_own(newest, keep)
            with Range("draft", sum(keep)):
                drafted = functional.draft(output.logits[:, 0], self.affinity, **link)
            link = {"after": drafted}
            seen.places.append(drafted)
            lasts = [True] * len(going) if self.length is None else self.length(seen).tolist()
            for b, token in enumerate(drafted.tokens[:, 0].tolist()):
                known = going[b] and 0 <= token < len(spellings)
                drawn[b] += [token] * known
                ordinary = known and isinstance(spellings[token], bytes)
                going[b] = ordinary and lasts[b] and self.text.room(b) >= 1
        pairs = zip(sequences, drawn, strict=True)
        return Proposal.fixed([self._retokenised(s.context, own) for s, own in pairs], step)

    def _retokenised(self, context: Sequence[int], drawn: Sequence[int]) -> list[int]:
        spellings = [self.text.spellings[id] for id in drawn]
        ordinary = [each for each in spellings if isinstance(each, bytes)]
        special = [] if len(ordinary) == len(drawn) else self.text.specials.get(drawn[-1], [])
        target, behind = self.text.target_tokens, b""
        for id in reversed(context[-_BEHIND:]):
            piece = target.spellings[id] if id < len(target.spellings) else None
            if not isinstance(piece, bytes):
                break
            behind = piece + behind
            if piece[:1] == b" " or (len(behind) >= _BEHIND and behind[0] & 0xC0 != 0x80):
                break
        text = behind + b"".join(ordinary)
        text = text[: len(text) - incomplete(text)]
        tokens, at = [], 0
        for id in target.encode(text):
            end = at + len(target.spellings[id] or "")
            if at >= len(behind):
                tokens.append(id)
            elif end > len(behind):  # it begins in the context, which is decided
                tokens += target.encode(text[len(behind) : end])
            at = end
        return tokens + special


class TextChain(DrafterChain):
    """A drafter with another tokenizer: SLEM where all of a batch is greedy, or its affinity.

    Args:
        drafter: reads the target's text.
        affinity: V_d to V_t, such as `drafter.between(V_t)`.
        options: as in `DrafterChain`. Dynamic tokens are the target's, and have logits where the
            drafter has them, too. With them the affinity drafts always.
    """

    def __init__(self, drafter: TextDrafter, affinity: Affinity, **options: Any) -> None:
        source = options.get("dynamic_tokens")
        if source is not None:
            if any(True for _ in screens_of(source)):
                raise ValueError(
                    "TextChain: dynamic_tokens has a screen, which names rows of the drafter's "
                    "head and not the target's tokens; needs sources of those, such as RecentTokens"
                )
            if options.get("full_head") is None:
                options["full_head"] = drafter.partners_head(affinity.target_size)
        super().__init__(drafter, affinity, **options)
        for name in ("dynamic_tokens", "full_head"):
            options.pop(name, None)
        self.match = ExactMatch(drafter, **options)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        # Greedy sequences decide the same however they draft, so none depends on the others.
        if self.dynamic_tokens is None and not bool(step.temperature.any()):
            return self.match.propose(sequences, step)
        return super().propose(sequences, step)
