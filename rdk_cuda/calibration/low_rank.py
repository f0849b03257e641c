"""A head that keeps the pruned rows at low rank: the alternative to virtual tokens.

Relatives: SVD-softmax (Shim et al., NeurIPS 2017) previews all logits at low rank and computes the
likeliest exactly; SlimSpec (arXiv:2605.10453) trains a drafter with a head of low rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..affinity.entries import nonnegative
from ..vocabulary import Vocabulary
from .heads import FullHead, check_head

__all__ = ["low_rank_factors", "low_rank_head"]

_BLOCK_ROWS = 1 << 13  # of the head, in float64
_LEAST = 1e-9  # of the largest eigenvalue: below, a direction of hidden states is rounding


@torch.no_grad()
def low_rank_head(
    full_head: FullHead,
    vocabulary: Vocabulary,
    second_moment: Tensor,
    rank: int,
    *,
    mean_probs: Tensor | None = None,
) -> FullHead:
    """The head with its pruned rows replaced by what `low_rank_factors` make, for measuring.

    Args:
        full_head, second_moment, rank, mean_probs: as for `low_rank_factors`. The bias stays exact.

    Returns:
        Weight `[V_t, d]` and bias, in their dtypes.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        >>> weight, _ = low_rank_head((weight, None), Vocabulary([0], 4), torch.eye(2), rank=1)
        >>> weight.round(decimals=4)
        tensor([[1., 2.],
                [1., 0.],
                [2., 0.],
                [3., 0.]])
    """
    weight, bias = full_head
    left, right = low_rank_factors(
        full_head, vocabulary, second_moment, rank, mean_probs=mean_probs
    )
    low_rank = weight.detach().clone()
    low_rank[vocabulary.pruned] = (left @ right).to(weight.dtype)
    return low_rank, bias


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

    Of all matrices of rank r theirs has the least mean squared error of the logits,
    `sum_c mu_c E[((h_c - l_c) . x)^2]`: it comes from the truncated SVD (Eckart and Young, 1936)
    of `diag(mu)^(1/2) H M^(1/2)` with `M = E[x x^T]`, computed from a `[d, d]` Gram matrix that is
    summed in float64. The first directions explain most: the first s columns and rows are the
    factors of rank s.

    Args:
        full_head: weight `[V_t, d]` and bias `[V_t]` or None; the bias is not part of it.
        second_moment: `[d, d]`, M, positive semi-definite.
        rank: 1 to d.
        mean_probs: `[V_t]`, mu, how much the logits of each token matter. None: all alike.

    Returns:
        left `[P, r]`, by ascending pruned id, and right `[r, d]`, float32.

    Raises:
        ValueError: shapes that disagree, no pruned token, a rank out of range, or mean_probs
            that are 0 for all pruned tokens.
    """
    weight, bias = full_head
    check_head("low_rank_head", weight, bias, vocabulary)
    width, pruned = weight.shape[1], vocabulary.pruned
    if not 1 <= rank <= width or not pruned.numel():
        raise ValueError(
            f"low_rank_head: rank is {rank} and {pruned.numel()} tokens are pruned; needs a rank "
            f"of 1 to d = {width} and at least one pruned token"
        )
    if mean_probs is None:
        mean_probs = torch.ones(vocabulary.target_size, dtype=torch.float32, device="cpu")
    mass = nonnegative("low_rank_head: mean_probs", mean_probs, (vocabulary.target_size,))[pruned]
    if not mass.sum() > 0:
        raise ValueError("low_rank_head: mean_probs is 0 for all pruned tokens; needs some above 0")
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
    """`B [d, d]` with `B B^T = moment`, and its inverse, float64."""
    if moment.shape != (width, width) or not bool(moment.isfinite().all()):
        raise ValueError(
            f"low_rank_head: second_moment has shape {list(moment.shape)} or is not finite; needs "
            f"finite [d, d] with d = {width}"
        )
    values, vectors = torch.linalg.eigh(moment.detach().double())
    if not values[-1] > 0:
        raise ValueError("low_rank_head: second_moment is 0; needs that of some hidden states")
    scales = values.clamp_min(float(values[-1]) * _LEAST).sqrt()
    return vectors * scales, vectors.T / scales[:, None]
