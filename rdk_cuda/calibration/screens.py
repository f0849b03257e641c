"""Screens of pruned tokens within a budget of bytes (DESIGN section 2, "Dynamic tokens")."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..dynamic_tokens import ScreenedTokens
from ..vocabulary import Vocabulary
from .heads import FullHead
from .low_rank import low_rank_factors

__all__ = ["screens_within"]

_WIDTHS = tuple(1 << power for power in range(6, 14))
_HIGHEST_RANK = 512


def screens_within(
    share: float,
    full_head: FullHead,
    vocabulary: Vocabulary,
    second_moment: Tensor,
    mean_probs: Tensor,
    *,
    batch: int = 1,
) -> Iterator[ScreenedTokens]:
    """Screens that read a given share of the bytes of the pruned rows, from many tokens to few.

    A screen is read once for a batch, and the head's rows of the tokens that it offers once for
    each position. So a wider offer leaves less for the rank, and more so in larger batches. The
    rank is the highest that fits:

        screen.bytes + batch * width * row <= share * pruned tokens * row

    with `row` the bytes of a row of the full head.

    Args:
        share: of the bytes of the pruned rows in the dtype of the full head.
        full_head: the drafter's own, `[V_t, d]` and `[V_t]` or None.
        second_moment: `[d, d]`, `E[x x^T]` of the hidden states.
        mean_probs: `[V_t]`, how much the logits of each token matter.
        batch: how many positions are drafted at once.

    Example:
        >>> import torch
        >>> head = torch.randn(1000, 64), None
        >>> vocabulary = Vocabulary(range(200), 1000)
        >>> screens = screens_within(0.25, head, vocabulary, torch.eye(64), torch.ones(1000))
        >>> [(screen.width, screen.rank, screen.bytes) for screen in screens]
        [(128, 11, 18016), (64, 26, 33856)]
    """
    weight, pruned = full_head[0], vocabulary.pruned.numel()
    width = weight.shape[1]
    row = width * weight.element_size()
    rank_bytes = pruned + 4 * width
    fitting: list[tuple[int, int]] = []
    for offered in _WIDTHS:
        room = share * pruned * row - batch * offered * row - 8 * pruned
        rank = min(int(room // rank_bytes), width, _HIGHEST_RANK)
        if offered <= pruned and rank >= 1:
            fitting.append((offered, rank))
    if not fitting:
        return
    highest = max(rank for _, rank in fitting)
    left, right = low_rank_factors(
        full_head, vocabulary, second_moment, highest, mean_probs=mean_probs
    )
    bias = None if full_head[1] is None else full_head[1][vocabulary.pruned]
    for offered, rank in reversed(fitting):
        yield ScreenedTokens.from_factors(
            vocabulary, left[:, :rank], right[:rank], bias, width=offered
        )
