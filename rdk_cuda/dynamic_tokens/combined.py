"""Several sources of dynamic tokens as one, and the recommended one (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import check_tensor, whole_number
from ..vocabulary import Vocabulary
from .sources import (
    IDS,
    Contexts,
    RecentTokens,
    distinct_tokens,
    is_pruned,
    named,
    offered,
    reads_hidden,
)
from .successors import SuccessorTable


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
        self.sources: tuple[Any, ...] = tuple(sources)
        self.width = whole_number("CombinedTokens", "width", width, 1)
        self.reads_hidden = any(map(reads_hidden, sources))
        self.vocabulary, self.allowed = vocabulary, is_pruned(vocabulary, device)

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
        if self.is_one_call:
            return named("CombinedTokens", contexts, self.width, self.allowed, *self.sources)
        each = [offered(source, contexts, hidden) for source in self.sources]
        for place, tokens in enumerate(each):
            result = f"CombinedTokens: the result of sources[{place}]"
            check_tensor(result, tokens, IDS, len(contexts), "n")
        candidates = torch.cat([tokens.to(self.allowed.device) for tokens in each], dim=1)
        return distinct_tokens(candidates, self.allowed, self.width)

    @property
    def is_one_call(self) -> bool:
        """Whether one call of the operator names what all its sources do.

        So it does for recent tokens with or without a table, and not for types that inherit.
        """
        (recent, *others), allowed = self.sources, self.allowed
        if type(recent) is not RecentTokens or recent.vocabulary is not self.vocabulary:
            return False
        if recent.allowed.device != allowed.device or len(others) > 1:
            return False
        return all(
            type(table) is SuccessorTable
            and len(table.offsets) == len(allowed) + 1
            and table.offsets.device == allowed.device
            for table in others
        )


def recent_and_successors(
    vocabulary: Vocabulary,
    successors: SuccessorTable | None,
    *,
    width: int = 128,
    recent: int = 32,
    window: int = 256,
) -> CombinedTokens:
    """Make the recommended source: some recent tokens, then successors of the last token.

    Args:
        successors: None where there is no table; recent tokens may then take all columns.
        width: C, columns of each row.
        recent: how many of them recent tokens have for their own.
        window: how many of a sequence's last tokens are recent.
    """
    if successors is None:
        return CombinedTokens([RecentTokens(vocabulary, width, window)], vocabulary, width)
    newest = RecentTokens(vocabulary, min(recent, width), window)
    return CombinedTokens([newest, successors], vocabulary, width)
