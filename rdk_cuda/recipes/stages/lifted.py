"""Rows for tokens that a drafter's head never had, from the target's own (DESIGN section 2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...drafter import LiftedRows
from ...drafter.lifted import features_of, log_prior_of
from ...vocabulary import Vocabulary
from ..inputs.pairs import Pair, StatePair
from ..recording import Each, Recording, Samples, at_most, held_out_rows, silently
from ..request import Request
from .stage import Stage, State

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # relative to the mean square of a feature
_HELD_OUT = 5  # every so many kept tokens decide between them
_BLOCK = 1 << 13  # rows that are worked on in float32 at a time
_CONSTANTS = tuple(0.5 * step for step in range(-16, 9))
_SLOPES = (0.0, 0.25, 0.5, 1.0)
_SHIFTED_BY = 256  # samples that a shift is fitted to, evenly spaced
_AT_ONCE = 32  # samples whose logits are held at a time

# Of refitted_rows.
_HELD_OUT_DOCUMENTS = 1 / 5
_EPOCHS, _BATCH = 4, 64
_WORK = 5e12  # products for the pruned tokens' logits, which take most of the time
_STEP = 0.02  # of a logit at most, if all of a state and a row pull together
_SHIFT_STEP = 0.05
_LIKELIHOOD = 0.03  # of it next to the acceptance, which has no slope where q is far too small


@torch.no_grad()
def lift_rows(
    target_head: Tensor, own: Tensor, vocabulary: Vocabulary, mean_probs: Tensor
) -> LiftedRows:
    """The ridge regression of a drafter's rows on the target's, over the tokens that it kept.

    Tokens are weighted by the square root of their prior. Every fifth one is held out to choose
    the penalty.

    Args:
        target_head: `[V_t, d_t]`, any floating dtype.
        own, vocabulary: `[V_d, d]`, the drafter's rows, and which target tokens they are of.
        mean_probs: `[V_t]`, the target's mean probabilities, the prior.

    Example:
        >>> target_head = torch.randn(100, 4)
        >>> own = 2 * target_head[:50, :3]
        >>> lifted = lift_rows(target_head, own, Vocabulary(range(50), 100), torch.ones(100))
        >>> torch.allclose(lifted.rows(target_head), 2 * target_head[:, :3], atol=1e-2)
        True
    """
    kept = vocabulary.draft_ids.to(target_head.device)
    if len(kept) < 2:
        raise ValueError(f"lift_rows: {len(kept)} tokens are kept; needs at least 2")
    log_prior = log_prior_of(mean_probs)
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
    """Lifted rows with the constant and the slope that the target accepts most; without gain 0.

    Training keeps the logits of the tokens low that a drafter has, not those of others. The
    acceptance is that of the whole lifted head, the mean over the recorded temperatures of up to
    256 samples.
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
            features = features_of(target_head[ids], log_prior[ids.cpu()]).to(own.device)
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
        given = (solution * (self.gram @ solution - 2 * self.cross)).sum()
        return float(self.square + given)


def refitted_rows(
    lifted: LiftedRows,
    target_head: Tensor,
    own: Tensor,
    vocabulary: Vocabulary,
    samples: Samples,
    each: Each = silently,
) -> LiftedRows:
    """Lifted rows with the map and the shift that the target accepts most on a recording.

    The objective is `sum_x min(p, q)` of the whole lifted head, the mean over the recorded
    temperatures, plus 0.03 times the log-likelihood. A fifth of the documents is held out, and the
    given rows are returned unless the new ones are better there. Adam takes 4 epochs over the
    samples, or over as many of them as 5e12 products allow, on the target head's device.
    """
    held = held_out_rows(samples.documents, _HELD_OUT_DOCUMENTS)
    if not bool(held.any()):
        return lifted
    fit = _Fit(target_head, own, vocabulary, lifted.log_prior)
    products = _EPOCHS * vocabulary.pruned.numel() * target_head.shape[1]
    fitted = at_most(samples.select(~held), max(1, int(_WORK / products)))
    judging = at_most(samples.select(held), max(1, len(fitted) // 4))
    batches = _batches(len(fitted))
    map_ = lifted.map.to(fit.device, copy=True).requires_grad_()
    shift = lifted.shift.to(fit.device, copy=True).requires_grad_()
    typical = target_head[vocabulary.pruned[:4096].to(target_head.device)].float().norm(dim=1)
    step = _STEP / float(typical.mean() * fitted.hidden.norm(dim=1).mean())
    groups = [{"params": [map_], "lr": step}, {"params": [shift], "lr": _SHIFT_STEP}]
    adam = torch.optim.Adam(groups)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.02, total_iters=len(batches))
    for batch in each(batches, "Calibrating: fitting lifted rows"):
        with torch.enable_grad():
            loss = -fit.objective(fitted.select(batch), map_, shift, _LIKELIHOOD)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        decay.step()
    found = replace(lifted, map=map_.detach().cpu(), shift=shift.detach().cpu(), refitted=True)
    if not bool(found.map.isfinite().all()):
        return lifted
    rates = [fit.acceptance(judging, one) for one in (lifted, found)]
    return found if rates[1] > rates[0] else lifted


def _batches(count: int) -> Sequence[Tensor]:
    random = torch.Generator().manual_seed(0)
    orders = [torch.randperm(count, generator=random, device="cpu") for _ in range(_EPOCHS)]
    return [batch for order in orders for batch in order.split(_BATCH)]


class _Fit:
    """The whole lifted head on samples."""

    def __init__(
        self, target_head: Tensor, own: Tensor, vocabulary: Vocabulary, log_prior: Tensor
    ) -> None:
        self.device = target_head.device
        pruned = vocabulary.pruned
        self.rows = target_head[pruned.to(self.device)]
        self.own = own.to(self.device).float()
        self.log_prior = log_prior[pruned].to(self.device)
        self.column = column_of(vocabulary)

    def objective(self, samples: Samples, map_: Tensor, shift: Tensor, likelihood: float) -> Tensor:
        hidden = samples.hidden.to(self.device)
        mapped = torch.nn.functional.linear(hidden, map_)
        width = self.rows.shape[1]
        lifted = torch.nn.functional.linear(mapped[:, :width].to(self.rows), self.rows).float()
        slopes = mapped[:, width + 1 :] + shift[1]
        lifted = lifted + mapped[:, width : width + 1] + shift[0] + slopes * self.log_prior
        logits = torch.cat([torch.nn.functional.linear(hidden, self.own), lifted], dim=1)
        columns = self.column[samples.targets.long()].to(self.device)
        total = logits.new_zeros(())
        for temperature in samples.temperatures:
            p = samples.target_probs(temperature).to(self.device)
            log_q = (logits / temperature).log_softmax(1).gather(1, columns)
            total = total + torch.minimum(p, log_q.exp()).sum(1).mean()
            if likelihood:
                total = total + likelihood * (p * log_q).sum(1).mean()
        return total / len(samples.temperatures)

    @torch.no_grad()
    def acceptance(self, samples: Samples, lifted: LiftedRows) -> float:
        map_, shift = lifted.map.to(self.device), lifted.shift.to(self.device)
        total = 0.0
        for batch in torch.arange(len(samples), device="cpu").split(_BATCH):
            part = samples.select(batch)
            total += len(part) * float(self.objective(part, map_, shift, 0.0))
        return total / len(samples)


class Lifted(Stage[Request]):
    """Rows for the tokens that a drafter's head was trained without."""

    name = "lifted rows"

    def run(self, state: State[Request]) -> LiftedRows | None:
        if state.models.kept is not None:
            for recording in state.progress.each([state.recording], "Calibrating: lifting rows"):
                state.models = with_lifted_rows(state.models, recording, state.progress.each)
        return state.models.lifted

    def summary(self, state: State[Request]) -> str:
        return described_rows(state.models)


def with_lifted_rows(models: Pair, recording: Recording, each: Each = silently) -> Pair:
    if models.kept is None or not isinstance(models, StatePair):
        return models
    known = models.target_head, models.own_rows, models.kept
    if models.drafter.full_head(models.target) is None:
        lifted = lift_rows(*known, recording.mean_probs[0])
    else:
        lifted = LiftedRows.of_the_target(known[0].shape[1], recording.mean_probs[0])
    lifted = shifted_rows(lifted, *known, recording.samples)
    return replace(models, lifted=refitted_rows(lifted, *known, recording.samples, each))


def described_rows(models: Pair) -> str:
    if not isinstance(models, StatePair):
        return ""
    own, lifted = "lm_head.weight" in models.drafter.shared, models.lifted
    of_the_target = "The rows of pruned tokens are the target's own, as are the drafter's"
    if lifted is None:
        return f"{of_the_target}." if own else ""
    constant, slope = lifted.shift.tolist()
    added = f"{constant:.3g} + {slope:.2g} times their log prior is added to their logits."
    origin = (
        of_the_target
        if own
        else "The drafter has no rows for the pruned tokens; they are lifted from the target's "
        f"(share of a row's square that the map misses: {lifted.unexplained:.0%})"
    )
    fitted = ", on a state that was fitted to what the target accepts"
    return f"{origin}{fitted if lifted.refitted else ''}; {added}"
