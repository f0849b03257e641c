"""Which pruned tokens a row offers by name (DESIGN section 2, "Dynamic tokens").

A *source* of dynamic tokens is any function from the sequences so far to target ids `[B, C]`, -1
for none. `RecentTokens` is one, a `SuccessorTable` another, and `CombinedTokens` makes one of
several. `Followed` asks a source about sequences that grow.

For a decoder to stay lossless a source may look at anything that is known before the token is
drawn: the context, the drafter's hidden state, earlier drafts of the same step, rejected ones of
the steps before (DESIGN section 5).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._ops.inputs import check_tensor, whole_number
from ..vocabulary import Vocabulary

Contexts: TypeAlias = Sequence[Sequence[int]] | Tensor
"""B sequences of target ids, or a padded `[B, L]` tensor of them with the newest last."""

DynamicTokens = Callable[..., Tensor]
"""A source: from B sequences of target ids to `[B, C]` integers, -1 for an unused column. If its
attribute `reads_hidden` is true, it is also given `hidden`, `[B, d]`, the drafter's last hidden
states, from which the next tokens are about to be drafted."""

_IDS = (torch.int32, torch.int64)  # narrower ones index nothing, and are compared with sizes


def offered(source: DynamicTokens, contexts: Contexts, hidden: Tensor | None) -> Tensor:
    """Ask a source for tokens, with the hidden states if it reads them."""
    if reads_hidden(source):
        return source(contexts, hidden=None if hidden is None else hidden.detach())
    return source(contexts)


def reads_hidden(source: DynamicTokens) -> bool:
    """Say whether a source needs the keyword `hidden`."""
    return bool(getattr(source, "reads_hidden", False))


def with_bonus(source: DynamicTokens, contexts: Contexts, tokens: Tensor, logits: Tensor) -> Tensor:
    """The logits `[B, C]` of what a source offered, raised for recent tokens by their bonus."""
    for recent in recent_tokens_of(source):
        if recent.bonus != 0:
            logits = logits + recent.bonus * recent.among(contexts, tokens)
    return logits


def with_recent_bonus(source: Any, bonus: float) -> Any:
    """Return the same source with another bonus for its recent tokens."""
    changed = copy.copy(source)
    if isinstance(source, RecentTokens):
        changed.bonus = bonus
    elif isinstance(source, CombinedTokens):
        changed.sources = tuple(with_recent_bonus(part, bonus) for part in source.sources)
    return changed


def recent_tokens_of(source: object) -> Iterator[RecentTokens]:
    """The recent tokens among a source of dynamic tokens and, if it combines several, its parts."""
    return (part for part in parts_of(source) if isinstance(part, RecentTokens))


def window_of(source: object) -> int:
    """Return how many last tokens of a sequence a drafter's sources read."""
    return max((recent.window for recent in recent_tokens_of(source)), default=1)


def parts_of(source: object) -> Iterator[object]:
    """Yield a source of dynamic tokens and, if it combines several, all of these."""
    yield source
    for part in getattr(source, "sources", ()):
        yield from parts_of(part)


class RecentTokens:
    """The pruned tokens that a sequence has had lately: names and identifiers come again.

    Args:
        vocabulary: the drafter's own tokens; only the others are offered.
        width: C, how many columns each row has. The oldest tokens are left out, not the newest.
        window: how many of a sequence's last tokens are looked at.
        bonus: is added to the logit of every dynamic token that is among those last tokens,
            whichever source offers it. For a head that does not know what a repetition is worth,
            such as lifted rows.
        device: where the result is made, and where contexts are if they are a tensor.

    Example:
        >>> vocabulary = Vocabulary([0, 1], target_size=10)
        >>> recent = RecentTokens(vocabulary, width=3)
        >>> recent([[7, 0, 9, 7, 1], [0, 4]])
        tensor([[ 7,  9, -1],
                [ 4, -1, -1]], dtype=torch.int32)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        width: int = 64,
        window: int = 256,
        *,
        bonus: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.width = whole_number("RecentTokens", "width", width, 1)
        self.window = whole_number("RecentTokens", "window", window, 1)
        if not abs(bonus) <= torch.finfo(torch.float32).max:  # not of NaN
            raise ValueError(f"RecentTokens: bonus is {bonus!r:.40}; needs a finite number")
        self.bonus = float(bonus)
        self.allowed = is_pruned(vocabulary, device)

    def __call__(self, contexts: Contexts) -> Tensor:
        """Return the distinct pruned tokens among each sequence's last `window`, newest first.

        Ids outside the vocabulary are passed over. `[B, width]` int32, -1 where there are no more.
        For tensors nothing is read back from the device.
        """
        candidates = newest_first("RecentTokens", contexts, self.window, self.allowed.device)
        return distinct_tokens(candidates, self.allowed, self.width)

    def among(self, contexts: Contexts, tokens: Tensor) -> Tensor:
        """Which of the tokens `[B, C]` are among each sequence's last `window`: `[B, C]` bool.

        Reads nothing back from the device of the tokens.
        """
        device = tokens.device
        recent = newest_first("RecentTokens", contexts, self.window, device).to(device)
        if not recent.shape[1]:
            return torch.zeros_like(tokens, dtype=torch.bool)
        recent, tokens = recent.long().sort(1).values, tokens.long()
        place = torch.searchsorted(recent, tokens).clamp_(max=recent.shape[1] - 1)
        return (recent.gather(1, place) == tokens) & (tokens >= 0)


class CombinedTokens:
    """Several sources as one: what the first names, then what the second adds, each token once.

    Where the width does not hold everything, the last sources lose. So put recent tokens before a
    `SuccessorTable`, which can fill any width, and give them a small one of their own where columns
    are few: in 32 or 64 columns the 8 newest recent tokens did better before a table than more or
    none. Columns that no source fills are -1, behind the others.

    Args:
        sources: at least one. They are called in this order with what this is called with.
        vocabulary: the drafter's own tokens; only the others are offered.
        width: C, how many columns each row has.
        device: where the result is made.

    Example:
        >>> vocabulary = Vocabulary([0, 1], target_size=10)
        >>> recent = RecentTokens(vocabulary, width=2)
        >>> always = lambda contexts: torch.tensor([[5, 9]] * len(contexts))
        >>> CombinedTokens([recent, always], vocabulary, width=3)([[7, 0, 9], [0, 4]])
        tensor([[9, 7, 5],
                [4, 5, 9]], dtype=torch.int32)
    """

    def __init__(
        self,
        sources: Sequence[Callable[..., Tensor]],
        vocabulary: Vocabulary,
        width: int = 128,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        whole_number("CombinedTokens", "the number of sources", len(sources), 1)
        self.sources = tuple(sources)
        self.width = whole_number("CombinedTokens", "width", width, 1)
        self.reads_hidden = any(map(reads_hidden, sources))
        self.allowed = is_pruned(vocabulary, device)

    def __call__(self, contexts: Contexts, *, hidden: Tensor | None = None) -> Tensor:
        """The distinct pruned tokens that the sources name, in their order: `[B, width]` int32.

        -1 where there are no more. Nothing is read back from the device.

        Args:
            contexts: B sequences of target ids, or a padded tensor `[B, L]` of integers.
            hidden: `[B, d]`, for the sources that read it, as `ScreenedTokens`.
        """
        if self.reads_hidden and hidden is None:
            raise ValueError(
                "CombinedTokens: a source reads hidden states and hidden is None; needs [B, d]"
            )
        named = [offered(source, contexts, hidden) for source in self.sources]
        for place, tokens in enumerate(named):
            result = f"CombinedTokens: the result of sources[{place}]"
            check_tensor(result, tokens, _IDS, len(contexts), "n")
        candidates = torch.cat([tokens.to(self.allowed.device) for tokens in named], dim=1)
        return distinct_tokens(candidates, self.allowed, self.width)


def newest_first(source: str, contexts: Contexts, window: int, device: torch.device) -> Tensor:
    """Reverse the last `window` tokens of each sequence: `[B, n]` integers, n <= `window`.

    They are -1 behind the oldest. A tensor stays on its device, and nothing of it is read back.
    `source` is what errors are said to come from.
    """
    if isinstance(contexts, Tensor):
        check_tensor(f"{source}: contexts", contexts, _IDS, "B", "L")
        newest = contexts[:, max(0, contexts.shape[1] - window) :]
        return newest if window == 1 else newest.flip(1)
    reversed_ = [context[-window:][::-1] for context in contexts]
    longest = max(map(len, reversed_), default=0)
    padded = [[*ids, *[-1] * (longest - len(ids))] for ids in reversed_]
    return torch.tensor(padded, dtype=torch.int64, device=device).view(len(padded), longest)


def distinct_tokens(candidates: Tensor, allowed: Tensor, width: int) -> Tensor:
    """Return the first `width` distinct allowed tokens of each row, in the order of the candidates.

    Args:
        candidates: `[..., n]` integer target ids; ids outside `[0, V_t)` are passed over.
        allowed: `[V_t]` bool, on the same device.

    Returns:
        `[..., width]` int32, -1 where there are no more.

    Example:
        >>> allowed = torch.tensor([True, False, True, True])
        >>> distinct_tokens(torch.tensor([3, 1, 3, -1, 0, 2]), allowed, width=2)
        tensor([3, 0], dtype=torch.int32)
    """
    count = candidates.shape[-1]
    if not count:
        return candidates.new_full((*candidates.shape[:-1], width), -1, dtype=torch.int32)
    # A stable sort brings equal tokens together, the first one in front.
    tokens, order = candidates.sort(dim=-1, stable=True)
    new = torch.nn.functional.pad(tokens[..., 1:] != tokens[..., :-1], (1, 0), value=True)
    known = tokens.clamp(0, allowed.numel() - 1)
    chosen = new & (known == tokens) & allowed[known]
    # Where the chosen ones are, in their order. All others are at one more place, which has -1.
    places = order.where(chosen, count).topk(min(width, count), largest=False).values
    result = torch.nn.functional.pad(candidates, (0, 1), value=-1).gather(-1, places).int()
    return (
        result if count >= width else torch.nn.functional.pad(result, (0, width - count), value=-1)
    )


def is_pruned(vocabulary: Vocabulary, device: torch.device | str = "cpu") -> Tensor:
    """Return `[V_t]` bool, as `distinct_tokens` takes it."""
    pruned = torch.zeros(vocabulary.target_size, dtype=torch.bool, device="cpu")
    pruned[vocabulary.pruned] = True
    return pruned.to(device)
