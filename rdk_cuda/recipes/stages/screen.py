"""Screens of pruned tokens within a budget of bytes (DESIGN section 2, "Dynamic tokens")."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...affinity.entries import nonnegative
from ...drafter import FullHead
from ...drafter.heads import check_head
from ...dynamic_tokens import ScreenedTokens
from ...vocabulary import Vocabulary

_WIDTHS = tuple(1 << power for power in range(6, 14))
_HIGHEST_RANK = 512
_BLOCK_ROWS = 1 << 13  # of the head, in float64
_LEAST = 1e-9  # of the largest eigenvalue: below, a direction of hidden states is rounding


def screens_within(
    share: float,
    full_head: FullHead,
    vocabulary: Vocabulary,
    second_moment: Tensor,
    mean_probs: Tensor,
    *,
    batch: int = 1,
    factors: tuple[Tensor, Tensor] | None = None,
) -> Iterator[ScreenedTokens]:
    """Screens that read a share of the bytes of the pruned rows, from many tokens to few.

    A screen is read once for a batch, and the head's rows of the tokens that it offers once for
    each position. So a wider offer leaves less for the rank, which is the highest that fits:

        screen.bytes + batch * width * row <= share * pruned tokens * row

    Args:
        second_moment: `[d, d]`, `E[x x^T]` of the hidden states.
        mean_probs: `[V_t]`, how much the logits of each token matter.
        factors: as `low_rank_factors` gives them at rank 512, or d if that is less, to share
            between budgets. Made from the other arguments if absent.
    """
    weight, pruned = full_head[0], vocabulary.pruned.numel()
    room = share * pruned * weight[0].nbytes - (4 if full_head[1] is None else 8) * pruned
    sizes = list(_sizes(room, pruned, weight.shape[1], weight[0].nbytes, batch))
    if not sizes:
        return
    left, right = factors or low_rank_factors(
        full_head,
        vocabulary,
        second_moment,
        max(rank for _, rank in sizes),
        mean_probs=mean_probs,
    )
    bias = None if full_head[1] is None else full_head[1][vocabulary.pruned]
    for width, rank in sizes:
        yield ScreenedTokens.from_factors(
            vocabulary, left[:, :rank], right[:rank], bias, width=width
        )


def _sizes(
    room: float, pruned: int, hidden_size: int, row: int, batch: int
) -> Iterator[tuple[int, int]]:
    """Of screens that fit: width and rank."""
    for width in reversed(_WIDTHS):
        rank = int((room - batch * width * row) // (pruned + 4 * hidden_size))
        if width <= pruned and rank >= 1:
            yield width, min(rank, hidden_size, _HIGHEST_RANK)


@torch.no_grad()
def low_rank_factors(
    full_head: FullHead,
    vocabulary: Vocabulary,
    second_moment: Tensor,
    rank: int,
    *,
    mean_probs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The factors of the matrix of rank r that is closest to a head's pruned rows.

    Theirs has the least `sum_c mu_c E[((h_c - l_c) . x)^2]`: it comes from the truncated SVD
    (Eckart and Young, 1936) of `diag(mu)^(1/2) H M^(1/2)`. The first s columns and rows are those
    of rank s.

    Args:
        second_moment: `[d, d]`, `M = E[x x^T]`, positive semi-definite.
        mean_probs: `[V_t]`, mu, how much the logits of each token matter. None: all alike.

    Returns:
        left `[P, r]`, by ascending pruned id, and right `[r, d]`, float32.
    """
    weight, bias = full_head
    check_head("low_rank_factors", weight, bias, vocabulary)
    width, pruned = weight.shape[1], vocabulary.pruned
    if not 1 <= rank <= width or not pruned.numel():
        raise ValueError(
            f"low_rank_factors: rank is {rank} and {pruned.numel()} tokens are pruned; needs a "
            f"rank of 1 to d = {width} and at least one pruned token"
        )
    if mean_probs is None:
        mean_probs = torch.ones(vocabulary.target_size, dtype=torch.float32, device="cpu")
    size = (vocabulary.target_size,)
    mass = nonnegative("low_rank_factors: mean_probs", mean_probs, size)[pruned]
    if not mass.sum() > 0:
        raise ValueError(
            "low_rank_factors: mean_probs is 0 for all pruned tokens; needs some above 0"
        )
    metric, inverse = _metric(second_moment, width)
    gram = torch.zeros(width, width, dtype=torch.float64, device="cpu")
    for rows, share in zip(pruned.split(_BLOCK_ROWS), mass.split(_BLOCK_ROWS), strict=True):
        part = weight[rows].double()
        gram += part.T @ (part * share[:, None])
    main = torch.linalg.eigh(metric.T @ gram @ metric)[1][:, -rank:].flip(1)
    project, right = metric @ main, main.T @ inverse
    left = [weight[rows].float() @ project.float() for rows in pruned.split(_BLOCK_ROWS)]
    return torch.cat(left), right.float()


def _metric(moment: Tensor, width: int) -> tuple[Tensor, Tensor]:
    if moment.shape != (width, width) or not bool(moment.isfinite().all()):
        raise ValueError(
            f"low_rank_factors: second_moment has shape {list(moment.shape)} or is not finite; "
            f"needs finite [d, d] with d = {width}"
        )
    values, vectors = torch.linalg.eigh(moment.detach().double())
    if not values[-1] > 0:
        raise ValueError("low_rank_factors: second_moment is 0; needs that of some hidden states")
    scales = values.clamp_min(float(values[-1]) * _LEAST).sqrt()
    return vectors * scales, vectors.T / scales[:, None]
