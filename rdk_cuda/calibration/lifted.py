"""Rows for tokens that a drafter's head never had, from the target's own (DESIGN section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import gather_logits
from ..vocabulary import Vocabulary

__all__ = ["LiftedHead", "LiftedRows", "lift_rows"]

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # relative to the mean square of a feature
_HELD_OUT = 5  # every so many kept tokens decide between them
_LEAST_PRIOR = 1e-9  # of a token, as a share of the mean one: its logarithm has to be finite
_BLOCK = 1 << 13  # rows that are worked on in float32 at a time


@dataclass(frozen=True, eq=False)
class LiftedRows:
    """A linear map from the target's head rows `h_c` to rows of the drafter's head.

        row_c = M^T h_c + a + log(prior_c) b
        row_c . x = h_c . (M x) + a . x + log(prior_c) b . x

    Attributes:
        map: `[d_t + 2, d]` float32: `M^T`, then a, then b.
        log_prior: `[V_t]` float32.
        unexplained: share of the drafter's own rows, in the mean square over held-out kept tokens,
            that the map does not give; 0 is exact.
    """

    map: Tensor
    log_prior: Tensor
    unexplained: float = 0.0

    def rows(self, target_head: Tensor) -> Tensor:
        """`[V_t, d]` float32, of the target's head `[V_t, d_t]`."""
        parts = zip(target_head.split(_BLOCK), self.log_prior.split(_BLOCK), strict=True)
        return torch.cat([_features(rows, prior) @ self.map for rows, prior in parts])


class LiftedHead:
    """The logits of lifted rows, from the target's own head in memory: `full_head` of a decoder.

    Args:
        lifted: the map.
        target_head: `[V_t, d_t]`, any floating dtype.

    Example:
        >>> lifted = LiftedRows(torch.eye(4)[:, :2], torch.zeros(3))
        >>> head = LiftedHead(lifted, torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]))
        >>> head(torch.tensor([[10.0, 1.0]]), torch.tensor([[2, 0]], dtype=torch.int32))
        tensor([[ 4., 10.]])
    """

    def __init__(self, lifted: LiftedRows, target_head: Tensor) -> None:
        width = target_head.shape[1]
        self._map = lifted.map.to(target_head)
        self._log_prior = lifted.log_prior.to(target_head.device)
        if self._map.shape[0] != width + 2 or len(self._log_prior) != len(target_head):
            raise ValueError(
                f"LiftedHead: the target's head is {list(target_head.shape)}; needs "
                f"{[len(self._log_prior), self._map.shape[0] - 2]}, as the map was made for"
            )
        self._head, self.size = target_head, len(target_head)

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`[B, C]` logits of tokens `[B, C]` int32, -1 for none, at hidden states `[B, d]`."""
        mapped = torch.nn.functional.linear(hidden.to(self._map), self._map)
        width = self._head.shape[1]
        logits = gather_logits(mapped[:, :width].contiguous(), self._head, tokens).float()
        prior = self._log_prior[tokens.long().clamp(min=0)]
        result: Tensor = logits + mapped[:, width : width + 1] + prior * mapped[:, width + 1 :]
        return result


@torch.no_grad()
def lift_rows(
    target_head: Tensor, own: Tensor, vocabulary: Vocabulary, mean_probs: Tensor
) -> LiftedRows:
    """The ridge regression of a drafter's rows on the target's, over the tokens that it kept.

    Tokens are weighted by the square root of their prior. Every fifth one is held out to choose
    the penalty.

    Args:
        target_head: `[V_t, d_t]`, any floating dtype.
        own: `[V_d, d]`, the drafter's rows.
        vocabulary: which target tokens they are of.
        mean_probs: `[V_t]`, the target's mean probabilities, the prior.

    Raises:
        ValueError: fewer than two kept tokens.

    Example:
        >>> target_head = torch.randn(100, 4)
        >>> vocabulary = Vocabulary(range(50), 100)
        >>> own = 2 * target_head[:50, :3]
        >>> lifted = lift_rows(target_head, own, vocabulary, torch.ones(100))
        >>> torch.allclose(lifted.rows(target_head), 2 * target_head[:, :3], atol=1e-2)
        True
    """
    kept, size = vocabulary.draft_ids.to(target_head.device), vocabulary.target_size
    if len(kept) < 2:
        raise ValueError(f"lift_rows: {len(kept)} tokens are kept; needs at least 2")
    prior = mean_probs.double() / mean_probs.double().sum()
    log_prior = prior.clamp_min(_LEAST_PRIOR / size).log().float()
    weights = prior[vocabulary.draft_ids].clamp_min(_LEAST_PRIOR / size).sqrt()
    weights /= weights.sum()
    held = torch.arange(len(kept), device="cpu") % _HELD_OUT == _HELD_OUT - 1
    held &= len(kept) >= 2 * _HELD_OUT
    sums = [_Sums.of(target_head, own, kept, log_prior, weights * part) for part in (~held, held)]
    fitted, judging = sums
    errors = [judging.error(fitted.solved(ridge)) for ridge in _RIDGES]
    best = min(range(len(_RIDGES)), key=errors.__getitem__)
    spread = float(judging.square - judging.cross[-2].square().sum() / judging.gram[-2, -2])
    unexplained = errors[best] / spread if bool(held.any()) and spread > 0 else 0.0
    whole = _Sums(*(a + b for a, b in zip(fitted, judging, strict=True)))
    return LiftedRows(whole.solved(_RIDGES[best]).float(), log_prior, unexplained)


class _Sums(NamedTuple):
    """Weighted sums over tokens, of features f and rows r: `f f^T`, `f r^T`, `r . r`; float64."""

    gram: Tensor
    cross: Tensor
    square: Tensor

    @classmethod
    def of(
        cls, target_head: Tensor, own: Tensor, kept: Tensor, log_prior: Tensor, weights: Tensor
    ) -> _Sums:
        width = target_head.shape[1] + 2
        gram = torch.zeros(width, width, dtype=torch.float64, device=own.device)
        cross = torch.zeros(width, own.shape[1], dtype=torch.float64, device=own.device)
        square = torch.zeros((), dtype=torch.float64, device=own.device)
        for part in torch.arange(len(kept), device="cpu").split(_BLOCK):
            ids = kept[part.to(kept.device)]
            features = _features(target_head[ids], log_prior[ids.cpu()]).to(own.device)
            rows, weight = own[part.to(own.device)].float(), weights[part].float().to(own.device)
            weighted = features * weight[:, None]
            gram += (features.T @ weighted).double()
            cross += (weighted.T @ rows).double()
            square += (weight[:, None] * rows.square()).sum().double()
        return cls(gram, cross, square)

    def solved(self, ridge: float) -> Tensor:
        """The map `[d_t + 2, d]`; constant and log prior are hardly penalised."""
        penalty = self.gram.diagonal()[:-2].mean().expand(len(self.gram)).clone()
        penalty[-2:] *= 1e-6
        penalty = penalty.clamp_min(torch.finfo(torch.float64).tiny)
        solution: Tensor = torch.linalg.solve(self.gram + torch.diag(ridge * penalty), self.cross)
        return solution

    def error(self, solution: Tensor) -> float:
        """The weighted square of what the map does not give."""
        given = (solution * (self.gram @ solution - 2 * self.cross)).sum()
        return float(self.square + given)


def _features(rows: Tensor, log_prior: Tensor) -> Tensor:
    constant = rows.new_ones(len(rows), 1, dtype=torch.float32)
    return torch.cat([rows.float(), constant, log_prior.to(rows.device)[:, None]], dim=1)
