"""A head that keeps the pruned rows at low rank: the alternative to virtual tokens.

Relatives: SVD-softmax (Shim et al., NeurIPS 2017) previews all logits at low rank and computes the
likeliest exactly; SlimSpec (arXiv:2605.10453) trains a drafter with a head of low rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..affinity.entries import nonnegative
from ..vocabulary import Vocabulary
from .heads import FullHead, check_head

__all__ = ["LowRankHead", "low_rank_head", "screened_tokens"]

_BLOCK_ROWS = 1 << 13  # of the head, in float64, or of logits to screen
_LEAST = 1e-9  # of the largest eigenvalue: below, a direction of hidden states is rounding


@dataclass(frozen=True, eq=False)
class LowRankHead:
    """Exact rows for the kept tokens, `left @ right` for the pruned ones.

    Attributes:
        vocabulary: which tokens are kept.
        kept: `[V_hot, d]`, in the vocabulary's order.
        left, right: `[V_pruned, r]`, in ascending order of id, and `[r, d]`.
        bias: `[V_t]`, exact, or None.
    """

    vocabulary: Vocabulary
    kept: Tensor
    left: Tensor
    right: Tensor
    bias: Tensor | None = None

    @property
    def rank(self) -> int:
        """r."""
        return self.right.shape[0]

    @property
    def rows(self) -> int:
        """How many rows of width d a position multiplies: `V_hot + r`, the first stage."""
        return self.kept.shape[0] + self.rank

    @property
    def weights(self) -> int:
        """How many weights a position reads, those of the second stage included."""
        return self.kept.numel() + self.left.numel() + self.right.numel()

    @property
    def bytes(self) -> int:
        """Bytes of weights that a position reads."""
        return self.weights * self.kept.element_size()

    @property
    def flops(self) -> int:
        """Floating-point operations per position, two for each weight."""
        return 2 * self.weights

    def preview(self, hidden: Tensor) -> Tensor:
        """The logits of the pruned tokens alone: `[..., V_pruned]`."""
        logits = hidden @ self.right.T @ self.left.T
        return logits if self.bias is None else logits + self.bias[self.vocabulary.pruned]

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits of all target tokens, `[..., V_t]`, for hidden states `[..., d]`."""
        exact = hidden @ self.kept.T
        if self.bias is not None:
            exact = exact + self.bias[self.vocabulary.draft_ids]
        logits = exact.new_empty(*hidden.shape[:-1], self.vocabulary.target_size)
        logits[..., self.vocabulary.draft_ids] = exact
        logits[..., self.vocabulary.pruned] = self.preview(hidden)
        return logits

    def dense(self) -> Tensor:
        """The weight `[V_t, d]` that gives the same logits, to measure it as any other head."""
        weight = self.kept.new_empty(self.vocabulary.target_size, self.kept.shape[1])
        weight[self.vocabulary.draft_ids] = self.kept
        weight[self.vocabulary.pruned] = self.left @ self.right
        return weight


@torch.no_grad()
def low_rank_head(
    full_head: FullHead,
    vocabulary: Vocabulary,
    second_moment: Tensor,
    rank: int,
    *,
    mean_probs: Tensor | None = None,
) -> LowRankHead:
    """Replaces the pruned rows by the closest ones of rank r, as hidden states see them.

    Of all matrices of rank r, `left @ right` has the least mean squared error of the logits,
    `sum_c mu_c E[((h_c - left_c right) . x)^2]`: the truncated SVD (Eckart and Young, 1936) of
    `diag(mu)^(1/2) H M^(1/2)` with `M = E[x x^T]`, taken back. The SVD is had from a
    `[d, d]` Gram matrix, which is summed in blocks in float64.

    Args:
        full_head: weight `[V_t, d]` and bias `[V_t]` or None; the bias stays exact.
        second_moment: `[d, d]`, M, positive semi-definite.
        rank: 1 to d.
        mean_probs: `[V_t]`, how much the logits of each token matter; all alike if absent.

    Raises:
        ValueError: shapes that disagree, no pruned token, a rank out of range, or mean_probs
            that are 0 for all pruned tokens.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        >>> head = low_rank_head((weight, None), Vocabulary([0], 4), torch.eye(2), rank=1)
        >>> head.logits(torch.tensor([1.0, 1.0])).round(decimals=4)
        tensor([3., 1., 2., 3.])
        >>> head.flops
        14
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
    kept = weight.detach()[vocabulary.draft_ids]
    return LowRankHead(
        vocabulary,
        kept,
        torch.cat(left).to(kept.dtype),
        right.to(kept.dtype),
        None if bias is None else bias.detach(),
    )


@torch.no_grad()
def screened_tokens(head: LowRankHead, hidden: Tensor, count: int) -> Tensor:
    """The pruned tokens that look likeliest at low rank, for use as dynamic tokens.

    `gather_logits(hidden, weight, tokens, bias)` of the full head then gives their exact logits.
    This is the preview of SVD-softmax as a choice of dynamic tokens. It needs the hidden state of
    the position to be drafted, so it is not by itself a source of dynamic tokens for a decoder,
    which passes only the context.

    Args:
        hidden: `[n, d]`.
        count: C, at most the number of pruned tokens.

    Returns:
        `[n, C]` int32 target ids, likeliest first.

    Raises:
        ValueError: a count out of range.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        >>> head = low_rank_head((weight, None), Vocabulary([0], 4), torch.eye(2), rank=1)
        >>> screened_tokens(head, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 2)
        tensor([[3, 2],
                [1, 2]], dtype=torch.int32)
    """
    pruned = head.vocabulary.pruned
    if not 1 <= count <= pruned.numel():
        raise ValueError(
            f"screened_tokens: count is {count}; needs 1 to the number of pruned tokens, "
            f"{pruned.numel()}"
        )
    best = [head.preview(part).topk(count, dim=1)[1] for part in hidden.split(1024)]
    return pruned[torch.cat(best)].int()


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
