"""The state of the sequences that are generated, and statistics about how they came about."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from .._ops.inputs import Integers, Numbers, limits, per_sequence, temperatures, user_seeds
from .proposal import Step

Kind = Literal["accepted", "out_of_vocabulary", "resampled", "bonus"]
"""How a token was decided: drafted and accepted; the same, but outside the drafter's own
vocabulary; drawn in place of a rejected draft; drawn after the last draft."""

Stop = Callable[[int, Sequence[int]], bool]
"""Called with the number and all tokens of a sequence: whether it ends after the last one."""


@dataclass
class Statistics:
    """Count over all sequences, without tokens that were cut off after an end token.

    Attributes:
        drafted: how many drafts were judged, by place in the draft. Nothing after a rejection is.
        accepted: how many of them were accepted. `sum(accepted) + resampled + bonus` is `tokens`.
        out_of_vocabulary: accepted drafts that the pruned vocabulary alone cannot propose.
        resampled, bonus: tokens drawn in place of a rejected draft, and after the last draft.
        target_passes: forward passes of the target, one for each sequence that took part.
    """

    drafted: list[int]
    accepted: list[int]
    out_of_vocabulary: int = 0
    resampled: int = 0
    bonus: int = 0
    target_passes: int = 0

    @classmethod
    def empty(cls, draft_length: int) -> Statistics:
        """Begin with nothing counted."""
        return cls([0] * draft_length, [0] * draft_length)

    @property
    def tokens(self) -> int:
        """All tokens generated."""
        return sum(self.accepted) + self.resampled + self.bonus

    @property
    def acceptance(self) -> list[float]:
        """Share of the judged drafts that were accepted, by place; NaN where none was judged."""
        return [_ratio(a, d) for a, d in zip(self.accepted, self.drafted, strict=True)]

    @property
    def mean_accepted_length(self) -> float:
        """Accepted drafts per target pass, without the token that the target adds itself."""
        return _ratio(sum(self.accepted), self.target_passes)

    @property
    def target_passes_per_token(self) -> float:
        """1 without speculation, 1 / (K + 1) at best."""
        return _ratio(self.target_passes, self.tokens)

    @property
    def out_of_vocabulary_share(self) -> float:
        """Share of the accepted tokens that the pruned vocabulary could not have drafted."""
        return _ratio(self.out_of_vocabulary, sum(self.accepted))

    def count(self, kinds: Sequence[Kind], drafts: int, times: int = 1) -> None:
        """Add what so many sequences decided in one pass each over `drafts` drafted tokens."""
        self.target_passes += times
        while len(self.drafted) < drafts:  # of a proposer whose longest draft nobody told
            self.drafted.append(0)
            self.accepted.append(0)
        for place, kind in enumerate(kinds[:drafts]):
            self.drafted[place] += times
            self.accepted[place] += times * (kind != "resampled")
        self.out_of_vocabulary += times * kinds.count("out_of_vocabulary")
        self.resampled += times * kinds.count("resampled")
        self.bonus += times * kinds.count("bonus")

    def drop(self, place: int, kind: Kind) -> None:
        """Take a token that was not kept out again, the one at this place of its pass."""
        if kind == "bonus":
            self.bonus -= 1
            return
        self.drafted[place] -= 1
        self.accepted[place] -= kind != "resampled"
        self.resampled -= kind == "resampled"
        self.out_of_vocabulary -= kind == "out_of_vocabulary"


class Generation(NamedTuple):
    """The new tokens of every sequence, an end token included, and how they came about.

    Attributes:
        logprobs: the natural logarithm of each token's probability, parallel to `tokens`; empty
            lists if not asked for.
    """

    tokens: list[list[int]]
    statistics: Statistics
    logprobs: list[list[float]]


@dataclass
class Continuation:
    """One sequence while it grows.

    Attributes:
        context: all its tokens: the prompt, what was generated, then the drafts of this step. One
            list that grows and is cut back; read it, but do not change or keep it.
        length: how many tokens of `context` are decided. Drafts follow them.
        prompt_length, full_length: of the prompt, and of the longest output with it.
        eos: tokens that end the sequence.
        ended: whether one of them, or a `Stop`, has ended it.
    """

    context: list[int]
    length: int
    prompt_length: int
    full_length: int
    eos: Collection[int]
    ended: bool = False

    @property
    def tokens(self) -> list[int]:
        """A copy of the decided tokens, prompt first."""
        return self.context[: self.length]

    @property
    def drafts(self) -> list[int]:
        """A copy of the drafts of this step."""
        return self.context[self.length :]

    @property
    def new(self) -> list[int]:
        """A copy of what was generated."""
        return self.context[self.prompt_length : self.length]

    @property
    def room(self) -> int:
        """How many tokens are still to be decided, 0 when it has ended."""
        return 0 if self.ended else max(0, self.full_length - self.length)

    def extend(
        self, decided: Sequence[int], stop: Callable[[Sequence[int]], bool] | None = None
    ) -> int:
        """Replace the drafts by decided tokens, up to the first that ends the sequence.

        Returns:
            How many tokens were appended.
        """
        context, room = self.context, self.room
        del context[self.length :]
        if len(decided) > room:  # a tree may be deeper than there is room for
            decided = decided[:room]
        ends = stop is not None or (self.eos and any(map(self.eos.__contains__, decided)))
        if decided and not ends and min(decided) >= 0:  # at once, as nearly always
            context += decided
            self.length += len(decided)
            return len(decided)
        for count, token in enumerate(decided, start=1):
            if token < 0:
                raise RuntimeError(
                    f"SpeculativeDecoder.generate: the target's logits after {self.length} tokens "
                    "of a sequence are no distribution: NaN or +inf among them, or none finite"
                )
            context.append(token)
            self.length += 1
            self.ended = token in self.eos or (stop is not None and bool(stop(self.context)))
            if self.ended:
                return count
        return len(decided)


@dataclass
class Batch:
    """Sequences, and `[B]` tensors of what differs between them."""

    sequences: list[Continuation]
    temperature: Tensor
    seeds: Tensor
    limits: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Integers,
        temperature: Numbers,
        seeds: Integers | None,
        eos: int | Collection[int] | Sequence[Collection[int]] | None,
        device: torch.device,
        **truncation: Numbers | None,
    ) -> Batch:
        """Spread the arguments of `SpeculativeDecoder.generate` over its sequences."""
        name, count = "SpeculativeDecoder.generate", len(prompts)
        texts = [_ids(f"prompts[{b}]", prompt) for b, prompt in enumerate(prompts)]
        if not all(texts):
            raise ValueError(f"{name}: prompts needs lists of token ids, none of them empty")
        host = torch.device("cpu")
        most = per_sequence(name, "max_new_tokens", max_new_tokens, count, host).tolist()
        if min(most, default=0) < 0:
            raise ValueError(f"{name}: max_new_tokens is {max_new_tokens}; needs at least 0")
        # As lists, whose numbers are looked at.
        listed = {each: _listed(value) for each, value in truncation.items() if value is not None}
        sequences = [
            Continuation(text, len(text), len(text), len(text) + new, ends)
            for text, new, ends in zip(texts, most, _end_tokens(eos, count), strict=True)
        ]
        return cls(
            sequences,
            temperatures(name, _listed(temperature), (count,), device),
            user_seeds(name, seeds, count, device),
            {
                each: cast(Tensor, limits(name, each, value, (count,), device))
                for each, value in listed.items()
            },
        )

    def step(self, room: list[int]) -> Step:
        """Describe the next step to a proposer and a rule; `room` is the sequences'."""
        lengths = [s.length for s in self.sequences]
        positions = torch.frombuffer(array("q", lengths), dtype=torch.int64).to(self.seeds.device)
        return Step(room, self.temperature, self.seeds, positions, self.limits)


def kinds_of(tokens: Sequence[int], end: Kind | None, pruned: Collection[int]) -> tuple[Kind, ...]:
    """How tokens were decided: drafted and accepted, but for the last one, if it has an end."""
    kinds = _accepted(len(tokens), end)
    if pruned:
        drafts = tokens if end is None else tokens[:-1]
        own: list[Kind] = ["out_of_vocabulary" if t in pruned else "accepted" for t in drafts]
        return *own, *kinds[len(own) :]
    return kinds


@lru_cache(256)
def _accepted(count: int, end: Kind | None) -> tuple[Kind, ...]:
    kinds: list[Kind] = ["accepted"] * count
    return tuple(kinds if end is None else [*kinds[:-1], end])


def _listed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(map(_listed, value)) if isinstance(value, list | tuple) else value


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _end_tokens(eos: Any, count: int) -> list[frozenset[int]]:
    eos = eos.tolist() if hasattr(eos, "tolist") else eos
    ends: list[Any] = [] if eos is None else list(eos) if _is_several(eos) else [eos]
    if not any(map(_is_several, ends)):
        return [frozenset(_ids("eos", ends))] * count
    if len(ends) != count:
        raise ValueError(
            f"SpeculativeDecoder.generate: eos has {len(ends)} sets; needs {count}, or one set"
        )
    return [frozenset(_ids(f"eos[{b}]", each)) for b, each in enumerate(ends)]


def _is_several(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str)


def _ids(name: str, given: Any) -> list[int]:
    try:
        return list(map(operator.index, given.tolist() if hasattr(given, "tolist") else given))
    except TypeError:
        raise TypeError(
            f"SpeculativeDecoder.generate: {name} is {given!r:.40}; needs a list of token ids"
        ) from None
