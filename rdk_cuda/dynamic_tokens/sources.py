"""Which pruned tokens a row offers by name (DESIGN section 2, "Dynamic tokens").

A *source* of dynamic tokens is any function from the sequences so far to target ids `[B, C]`, -1
for none. `RecentTokens` is one, a `SuccessorTable` another, and `CombinedTokens` makes one of
several. `Followed` asks a source about sequences that grow.

For a decoder to stay lossless a source may look at anything that is known before the token is
drawn: the context, the drafter's hidden state, earlier drafts of the same step, rejected ones of
the steps before (DESIGN section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.inputs import check_tensor, whole_number
from ..vocabulary import Vocabulary


@dataclass(frozen=True)
class KeptContexts:
    """B sequences where an engine keeps them: its tensors, as `rdk::name_tokens` reads them.

    A sequence is what its slot has in `contexts`, then what its step has decided, then the step's
    first drafts, `place` of them (DESIGN section 4, "Name tokens").
    """

    contexts: Tensor
    decided: Tensor | None = None
    drafts: Tensor | None = None
    place: int = 0
    lengths: Tensor | None = None
    slots: Tensor | None = None
    place_id: Tensor | None = None
    window: int = 2**31 - 2  # how many of the last ids are shown, at most

    def __len__(self) -> int:
        each = self.contexts if self.decided is None else self.decided
        return len(each if self.slots is None else self.slots)


Contexts: TypeAlias = Sequence[Sequence[int]] | Tensor | KeptContexts
"""B sequences of target ids, or a padded `[B, L]` tensor of them with the newest last, or where
they lie."""

DynamicTokens = Callable[..., Tensor]
"""A source: from B sequences of target ids to `[B, C]` integers, -1 for an unused column. If its
attribute `reads_hidden` is true, it is also given `hidden`, `[B, d]`, the drafter's last hidden
states, from which the next tokens are about to be drafted."""

IDS = (torch.int32, torch.int64)  # narrower ones index nothing, and are compared with sizes


def offered(source: DynamicTokens, contexts: Contexts, hidden: Tensor | None) -> Tensor:
    """Ask a source for tokens, with the hidden states if it reads them."""
    if reads_hidden(source):
        return source(contexts, hidden=None if hidden is None else hidden.detach())
    return source(contexts)


def reads_hidden(source: DynamicTokens) -> bool:
    """Say whether a source needs the keyword `hidden`."""
    return bool(getattr(source, "reads_hidden", False))


def window_of(source: object) -> int:
    """Return how many last tokens of a sequence a drafter's sources read."""
    recent = (part for part in parts_of(source) if isinstance(part, RecentTokens))
    return max((part.window for part in recent), default=1)


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
        device: torch.device | str = "cpu",
    ) -> None:
        self.width = whole_number("RecentTokens", "width", width, 1)
        self.window = whole_number("RecentTokens", "window", window, 1)
        self.vocabulary, self.allowed = vocabulary, is_pruned(vocabulary, device)

    def __call__(self, contexts: Contexts) -> Tensor:
        """Return the distinct pruned tokens among each sequence's last `window`, newest first.

        Ids outside the vocabulary are passed over. `[B, width]` int32, -1 where there are no more.
        For tensors nothing is read back from the device.
        """
        return named("RecentTokens", contexts, self.width, self.allowed, recent=self)


def named(
    source: str,
    contexts: Contexts,
    width: int,
    allowed: Tensor | None,
    recent: RecentTokens | None = None,
    table: Any = None,
) -> Tensor:
    """Name the first `width` distinct tokens that are recent or follow the last one, `[B, width]`.

    Args:
        source: what errors are said to come from.
        allowed: `[V_t]` bool; None: every token.
        recent: its own `width` limits it.
        table: a `SuccessorTable`.
    """
    window = 1 if recent is None else recent.window
    if isinstance(contexts, Tensor):
        check_tensor(f"{source}: contexts", contexts, IDS, "B", "L")
        kept = KeptContexts(contexts if contexts.stride(1) == 1 else contexts.contiguous())
    elif isinstance(contexts, KeptContexts):
        kept = contexts
    else:
        device = (table.offsets if recent is None else recent.allowed).device
        ends = [context[-window:] for context in contexts]
        longest = max(map(len, ends), default=0)
        padded = [[*[-1] * (longest - len(ids)), *ids] for ids in ends]
        tensor = torch.tensor(padded, dtype=torch.int64, device=device).view(len(padded), longest)
        kept = KeptContexts(tensor)
    found: Tensor = operators.name_tokens(
        kept.contexts,
        allowed,
        *((None, None) if table is None else (table.offsets, table.tokens)),
        0 if recent is None else min(width, recent.width),
        min(window, kept.window),
        width,
        kept.decided,
        kept.drafts,
        kept.place,
        kept.lengths,
        kept.slots,
        kept.place_id,
    )
    return found


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
    *leading, count = candidates.shape
    newest_last = candidates.flip(-1).reshape(math.prod(leading), count)
    found: Tensor = operators.name_tokens(newest_last, allowed, None, None, width, count, width)
    return found.view(*leading, width)


def is_pruned(vocabulary: Vocabulary, device: torch.device | str = "cpu") -> Tensor:
    """Return `[V_t]` bool, as `distinct_tokens` takes it."""
    pruned = torch.zeros(vocabulary.target_size, dtype=torch.bool, device="cpu")
    pruned[vocabulary.pruned] = True
    return pruned.to(device)
