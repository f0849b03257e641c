"""Rows for tokens that a drafter's head never had, from the target's own (DESIGN section 2)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import gather_logits
from ..vocabulary import Vocabulary
from .recording.samples import Samples, at_most

__all__ = ["BONUSES", "LiftedHead", "LiftedRows", "lift_rows", "shifted_rows"]

BONUSES = (0.5, 1.0, 1.5, 2.0, 3.0)
"""What `Options.bonuses` tries: lifted rows know the token, not that it has just been there."""

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # relative to the mean square of a feature
_HELD_OUT = 5  # every so many kept tokens decide between them
_LEAST_PRIOR = 1e-9  # of a token, as a share of the mean one: its logarithm has to be finite
_BLOCK = 1 << 13  # rows that are worked on in float32 at a time
_CONSTANTS = tuple(0.5 * step for step in range(-16, 9))
_SLOPES = (0.0, 0.25, 0.5, 1.0)
_SHIFTED_BY = 256  # samples that a shift is fitted to, evenly spaced
_AT_ONCE = 32  # samples whose logits are held at a time


@dataclass(frozen=True, eq=False)
class LiftedRows:
    """A linear map from the target's head rows `h_c` to rows of the drafter's head.

        row_c = M^T h_c + a + log(prior_c) b
        logit_c = row_c . x + o + s log(prior_c)
        row_c . x = h_c . (M x) + a . x + log(prior_c) b . x

    Attributes:
        map: `[d_t + 2, d]` float32: `M^T`, then a, then b.
        log_prior: `[V_t]` float32.
        shift: `[2]` float32: o and s.
        unexplained: share of the drafter's own rows, in the mean square over held-out kept tokens,
            that the map in closed form does not give; 0 is exact.
        refitted: whether the map was fitted to what the target accepts.
    """

    map: Tensor
    log_prior: Tensor
    shift: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float32, device="cpu"))
    unexplained: float = 0.0
    refitted: bool = False

    @classmethod
    def of_the_target(cls, width: int, mean_probs: Tensor) -> LiftedRows:
        """The target's own rows, for a drafter of the same width d whose kept rows these are."""
        same = torch.eye(width + 2, width, dtype=torch.float32, device="cpu")
        return cls(same, _log_prior(mean_probs))

    @property
    def bias(self) -> Tensor:
        """`[V_t]` float32, what is added to the logits of pruned tokens, whatever the state."""
        return self.shift[0] + self.shift[1] * self.log_prior

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
        self._bias = lifted.bias.to(target_head.device)
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
        at = tokens.long().clamp(min=0)
        logits += mapped[:, width : width + 1] + self._log_prior[at] * mapped[:, width + 1 :]
        return logits.add_(self._bias[at])


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
    kept = vocabulary.draft_ids.to(target_head.device)
    if len(kept) < 2:
        raise ValueError(f"lift_rows: {len(kept)} tokens are kept; needs at least 2")
    log_prior = _log_prior(mean_probs)
    weights = log_prior[vocabulary.draft_ids].double().div(2).exp()
    weights /= weights.sum()
    held = torch.arange(len(kept), device="cpu") % _HELD_OUT == _HELD_OUT - 1
    held &= len(kept) >= 2 * _HELD_OUT
    sums = [_Sums.of(target_head, own, kept, log_prior, weights * part) for part in (~held, held)]
    fitted, judging = sums
    errors = [judging.error(fitted.solved(ridge)) for ridge in _RIDGES]
    best = min(range(len(_RIDGES)), key=errors.__getitem__)
    spread = float(judging.square - judging.cross[-2].square().sum() / judging.gram[-2, -2])
    known = bool(held.any()) and spread > 0
    unexplained = max(0.0, errors[best] / spread) if known else 0.0  # of an exact map, rounding
    whole = _Sums(*(a + b for a, b in zip(fitted, judging, strict=True)))
    return LiftedRows(whole.solved(_RIDGES[best]).float(), log_prior, unexplained=unexplained)


@torch.no_grad()
def shifted_rows(
    lifted: LiftedRows, target_head: Tensor, own: Tensor, vocabulary: Vocabulary, samples: Samples
) -> LiftedRows:
    """Lifted rows with the constant o and the slope s that the target accepts most.

    The training of a drafter keeps the logits of the tokens low that it has, not those of others:
    a head for Gemma 3 270M that was trained with 32,768 tokens needs about -5 for the others. The
    acceptance is that of the whole lifted head, the mean over the recorded temperatures of up to
    256 samples. Without any gain the shift stays 0.

    Args:
        lifted: rows without a shift.
        target_head, own, vocabulary: as of `lift_rows`.
        samples: recorded positions.
    """
    samples = at_most(samples, _SHIFTED_BY)
    rows, log_prior = lifted.rows(target_head), lifted.log_prior[vocabulary.pruned]
    pruned, kept = rows[vocabulary.pruned.to(rows.device)].cpu(), own.float().cpu()
    place = column_of(vocabulary)
    # On a tie the first: no shift.
    rates = dict.fromkeys([(0.0, 0.0), *itertools.product(_CONSTANTS, _SLOPES)], 0.0)
    for at in torch.arange(len(samples), device="cpu").split(_AT_ONCE):
        part = samples.select(at)
        logits = part.hidden @ kept.T, part.hidden @ pruned.T
        columns = place[part.targets.long()]
        for temperature in samples.temperatures:
            p = part.target_probs(temperature)
            for slope in _SLOPES:
                given = _Masses.of(*logits, slope * log_prior, columns, temperature)
                for constant in _CONSTANTS:
                    rates[constant, slope] += float(given.accepted(p, constant / temperature))
    best = max(rates, key=lambda shift: rates[shift])
    return replace(lifted, shift=torch.tensor(best, dtype=torch.float32, device="cpu"))


def column_of(vocabulary: Vocabulary) -> Tensor:
    """`[V_t]` int64: of each token its place among the kept ones and then the pruned ones."""
    place = torch.empty(vocabulary.target_size, dtype=torch.int64, device="cpu")
    place[torch.cat([vocabulary.draft_ids, vocabulary.pruned])] = torch.arange(
        vocabulary.target_size, device="cpu"
    )
    return place


class _Masses(NamedTuple):
    """Sums of `exp(z / T)` over kept and over pruned tokens, and the terms of recorded targets."""

    kept: Tensor
    pruned: Tensor
    terms: Tensor
    is_pruned: Tensor

    @classmethod
    def of(
        cls, kept: Tensor, pruned: Tensor, bias: Tensor, columns: Tensor, temperature: float
    ) -> _Masses:
        logits = torch.cat([kept, pruned + bias], dim=1) / temperature
        masses = (logits - logits.amax(1, keepdim=True)).exp_()
        size = kept.shape[1]
        return cls(
            masses[:, :size].sum(1, keepdim=True),
            masses[:, size:].sum(1, keepdim=True),
            masses.gather(1, columns),
            columns >= size,
        )

    def accepted(self, p: Tensor, constant: float) -> Tensor:
        """The sum of `sum_x min(p, q)` with the pruned ones' logits that much larger."""
        factor = math.exp(constant)
        terms = torch.where(self.is_pruned, self.terms * factor, self.terms)
        return torch.minimum(p, terms / (self.kept + self.pruned * factor)).sum()


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


def _log_prior(mean_probs: Tensor) -> Tensor:
    prior = mean_probs.double() / mean_probs.double().sum()
    return prior.clamp_min(_LEAST_PRIOR / len(prior)).log().float()


def _features(rows: Tensor, log_prior: Tensor) -> Tensor:
    constant = rows.new_ones(len(rows), 1, dtype=torch.float32)
    return torch.cat([rows.float(), constant, log_prior.to(rows.device)[:, None]], dim=1)
