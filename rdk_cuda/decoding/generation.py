"""What `rdk_cuda.decoding` keeps of the sequences it generates, and what it tells about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._ops.inputs import (
    Integers,
    Numbers,
    per_sequence,
    temperatures,
    user_seeds,
)

Kind = Literal["accepted", "out_of_vocabulary", "resampled", "bonus"]
"""How a token was decided: drafted and accepted; the same, but outside the drafter's own
vocabulary; drawn in place of a rejected draft; drawn behind the last draft."""

Stop = Callable[[int, Sequence[int]], bool]
"""Whether a sequence, of which all tokens are given, ends behind the last of them."""


@dataclass
class Statistics:
    """Counts over all sequences; tokens cut off behind an end token do not count.

    Attributes:
        drafted: drafts that were judged, by place in the draft; those behind a rejection are not.
        accepted: the accepted ones of those. `sum(accepted) + resampled + bonus` is `tokens`.
        out_of_vocabulary: the accepted ones that the pruned vocabulary alone cannot propose.
        resampled, bonus: tokens drawn in place of a rejected draft, and behind the last draft.
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
        """Nothing counted yet."""
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

    def count(self, kinds: Sequence[Kind], drafts: int) -> None:
        """Add what one sequence decided in one pass over `drafts` drafted tokens."""
        self.target_passes += 1
        for place, kind in enumerate(kinds[:drafts]):
            self.drafted[place] += 1
            self.accepted[place] += kind != "resampled"
        self.out_of_vocabulary += kinds.count("out_of_vocabulary")
        self.resampled += kinds.count("resampled")
        self.bonus += kinds.count("bonus")


class Generation(NamedTuple):
    """The new tokens of every sequence, an end token included, and how they came about."""

    tokens: list[list[int]]
    statistics: Statistics


@dataclass
class Continuation:
    """One sequence while it grows: its tokens, prompt first, and the drafts that follow them."""

    tokens: list[int]
    prompt_length: int
    full_length: int
    eos: Collection[int]
    drafts: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def new(self) -> list[int]:
        """What was generated."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many tokens are still to be decided, 0 when it has ended."""
        return 0 if self.ended else max(0, self.full_length - len(self.tokens))

    def extend(
        self, decided: Sequence[int], stop: Callable[[Sequence[int]], bool] | None = None
    ) -> int:
        """Append tokens up to the first that ends the sequence; returns how many."""
        for count, token in enumerate(decided, start=1):
            if token < 0:
                raise RuntimeError(
                    "SpeculativeDecoder.generate: the target's logits behind "
                    f"{len(self.tokens)} tokens of a sequence are no distribution: NaN or +inf "
                    "among them, or none finite"
                )
            self.tokens.append(token)
            self.ended = token in self.eos or (stop is not None and bool(stop(self.tokens)))
            if self.ended:
                return count
        return len(decided)


class Batch(NamedTuple):
    """Continuations, and `[B]` tensors of what differs between them but stays the same in time."""

    sequences: list[Continuation]
    temperature: Tensor
    draft_temperature: Tensor
    seeds: Tensor

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Integers,
        temperature: Numbers,
        draft_temperature: float | None,
        seeds: Integers | None,
        eos: int | Collection[int] | Sequence[Collection[int]] | None,
        device: torch.device,
    ) -> Batch:
        """Spread the arguments of `SpeculativeDecoder.generate` over its sequences."""
        name, count = "SpeculativeDecoder.generate", len(prompts)
        if any(isinstance(prompt, int) or len(prompt) == 0 for prompt in prompts):
            raise ValueError(f"{name}: prompts needs lists of token ids, none of them empty")
        host = torch.device("cpu")
        limits = per_sequence(name, "max_new_tokens", max_new_tokens, count, host).tolist()
        target = temperatures(name, temperature, (count,), host)
        if min(limits, default=0) < 0 or not bool(((target >= 0) & target.isfinite()).all()):
            raise ValueError(
                f"{name}: max_new_tokens is {max_new_tokens} and temperature {temperature}; both "
                "need to be finite and at least 0"
            )
        sequences = [
            Continuation(list(prompt), len(prompt), len(prompt) + limit, ends)
            for prompt, limit, ends in zip(prompts, limits, _end_tokens(eos, count), strict=True)
        ]
        target = target.to(device)
        draft = target if draft_temperature is None else torch.full_like(target, draft_temperature)
        return cls(sequences, target, draft, user_seeds(name, seeds, None, count, device))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _end_tokens(eos: Any, count: int) -> list[frozenset[int]]:
    if isinstance(eos, Tensor):
        eos = eos.tolist()
    ends: list[Any] = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if all(isinstance(end, int) for end in ends):
        return [frozenset(ends)] * count
    if len(ends) != count:
        raise ValueError(
            f"SpeculativeDecoder.generate: eos has {len(ends)} sets; needs {count}, one for each "
            "prompt, or a single one"
        )
    return [frozenset(each) for each in ends]
