"""Rows of an affinity learned over few entries each (DESIGN section 2, "Calibration").

    pairs = draft_pairs(samples, drafter, full_head, temperature)
    pattern = joint_pattern(pairs, drafter.affinity, entries=16)
    affinity, history = maximise_acceptance(pairs, drafter.affinity, pattern)

The affinity fits the head, the bias and the dynamic tokens that `drafter` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..affinity import Affinity
from ..masses import RowMasses, canonical_tensors, token_masses
from .joint_masses import TargetMatrix
from .pairs import DraftPairs, Redistribution, acceptance, entries_of, redistributed

__all__ = [
    "Learned",
    "joint_pattern",
    "joint_rows",
    "maximise_acceptance",
    "maximise_likelihood",
]

_EXPLORED = 0.1  # of each row is spread over all its entries to start with: factors move no zero
# The kink of min(p, q) is rounded off by this share of p, and half as much after so many steps.
# Of the schedules tried this came closest to the linear program's optimum at 100 to 800 steps.
_ROUNDED, _SHARPENED_AFTER = 0.3, 30
_LARGEST_STEP = 100.0  # multiplies an entry by up to e^100
_LEAST_MASS = 1e-10  # below a unit of an affinity's masses, yet an entry can rise from it


class Learned(NamedTuple):
    """An affinity, and the objective in nats or as a rate: at the start and after each step."""

    affinity: Affinity
    history: list[float]


def joint_pattern(pairs: DraftPairs, affinity: Affinity, entries: int) -> Tensor:
    """For each drafter token the target tokens with the largest joint mass `E[q'_i p(x)]`.

    Args:
        affinity: what it lists in a row of S is always in the pattern: kept tokens themselves,
            the members of virtual ones.
        entries: at most so many in a row, unless `affinity` has more.

    Returns:
        Sparse `[V_d, V_t]` float64, coalesced: the joint masses, 0 where the affinity has an entry
        that no sample reaches.

    Example:
        >>> from rdk_cuda import Vocabulary
        >>> vocabulary = Vocabulary([0, 1], target_size=3)
        >>> q, p = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.3, 0.7]])
        >>> pairs = DraftPairs(q, torch.tensor([[0, 1, 2]]), p, torch.zeros(1, 3), 3)
        >>> joint_pattern(pairs, Affinity.intersection(vocabulary), entries=2).to_dense()
        tensor([[0.0000, 0.0000, 0.7000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    _check(pairs, affinity, "joint_pattern")
    if entries < 1:
        raise ValueError(f"joint_pattern: entries is {entries}; needs at least 1")
    target = TargetMatrix.of(pairs.targets, pairs.target_probs, pairs.target_size)
    own_rows, own_targets, _ = entries_of(affinity)
    own_counts = affinity.row_offsets.diff().long()
    width = min(entries, target.tokens.numel())
    found: list[Tensor] = []
    masses: list[Tensor] = []
    draft = pairs.draft_probs
    for block, joint in target.joint_with(draft.shape[1], lambda i: draft[:, i].contiguous()):
        first, last = (int(affinity.row_offsets[at]) for at in (block.start, block.stop))
        row, token = own_rows[first:last] - block.start, own_targets[first:last]
        found.append(torch.stack([own_rows[first:last], token]))
        masses.append(joint[row, target.place[token]])
        joint[row, target.place[token]] = 0
        top, place = joint[:, :-1].topk(width)
        room = (entries - own_counts[block])[:, None]
        row, rank = ((top > 0) & (torch.arange(width) < room)).nonzero().unbind(1)
        found.append(torch.stack([row + block.start, target.tokens[place[row, rank]]]))
        masses.append(top[row, rank])
    shape = (affinity.draft_size, affinity.target_size)
    return torch.sparse_coo_tensor(
        torch.cat(found, 1), torch.cat(masses).double(), shape, check_invariants=False
    ).coalesce()


def joint_rows(pattern: Tensor, affinity: Affinity, *, keep: float = 0.0) -> Affinity:
    """Rows proportional to the joint masses: what the target says where the drafter says i.

    Row i is `E[q'_i p(x)]` over the pattern, normalised. A row without mass stays as it is.

    Args:
        pattern: of `joint_pattern`.
        affinity: that the pattern was made with; its bias stays.
        keep: what share of each row stays that of `affinity`, 0 to 1.

    Example:
        >>> from rdk_cuda import Vocabulary
        >>> affinity = Affinity.intersection(Vocabulary([0, 1], target_size=3))
        >>> masses = torch.tensor([[0.1, 0.0, 0.3], [0.0, 0.0, 0.0]]).to_sparse()
        >>> joint_rows(masses, affinity).dense()
        tensor([[0.2500, 0.0000, 0.7500],
                [0.0000, 1.0000, 0.0000]], dtype=torch.float64)
    """
    if not 0 <= keep <= 1:
        raise ValueError(f"joint_rows: keep is {keep}; needs a share from 0 to 1")
    rows = _Rows.of(pattern, affinity, None)
    pattern = pattern.coalesce()
    row, target = pattern.indices().unbind(0)
    listed = RowMasses(row, target, pattern.values().double())
    nowhere = RowMasses(rows.rows, rows.targets, torch.zeros_like(rows.masses))
    joint = rows._replace(
        masses=nowhere.plus(listed, (affinity.draft_size, affinity.target_size)).masses,
        spread=torch.zeros_like(rows.spread),
    )
    return rows.mixed(joint, torch.where(joint.sums() > 0, 1 - keep, 0.0)).affinity(affinity.bias)


def maximise_likelihood(
    pairs: DraftPairs,
    affinity: Affinity,
    pattern: Tensor,
    *,
    prior: Tensor | None = None,
    steps: int = 30,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Learned:
    """Expectation maximisation of `mean_n sum_x p_n(x) log q_n(x)` over the pattern's entries.

    The rows are the components of a mixture whose weights q' are given (Dempster, Laird and Rubin
    1977): each entry is multiplied by `E[q'_i p(x) / q(x)]` and rows are normalised, so that the
    objective never falls. Tokens that no entry and no prior leads to are left out of it.

    Args:
        affinity: the rows to start near, with the bias that `pairs` were made with.
        pattern: sparse `[V_d, V_t]`, see `joint_pattern`; of its values only the places count.
        prior: `[V_t]` masses, over which each row may spread as well, as if it were one entry.
        progress: what the steps are drawn from, such as a progress bar.
    """
    rows, redistribution = _start("maximise_likelihood", pairs, affinity, pattern, prior)
    q = redistribution.of(rows.masses, rows.spread)
    p = pairs.target_probs * (q > 0)
    history = [_likelihood(p, q)]
    for _ in progress(range(steps)):
        # Where p is 0, q falls to 0 at once.
        by_entry, by_spread = redistribution.gradient(torch.where(q > 0, p / q, 0.0))
        rows = rows.times(by_entry, by_spread)
        q = redistribution.of(rows.masses, rows.spread)
        history.append(_likelihood(p, q))
    return Learned(rows.affinity(affinity.bias), history)


def maximise_acceptance(
    pairs: DraftPairs,
    affinity: Affinity,
    pattern: Tensor,
    *,
    prior: Tensor | None = None,
    steps: int = 100,
    evidence: float = 1.0,
    validation: DraftPairs | None = None,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Learned:
    """Exponentiated gradient ascent of `mean_n sum_x min(p_n(x), q_n(x))` over the pattern.

    The objective is concave in the affinity. Each row is multiplied by the exponential of its
    gradient (Kivinen and Warmuth 1997) per drafted mass `E[q'_i]`, so that rare tokens learn as
    fast as frequent ones. `min` is rounded off near `q = p`, ever less, since at a kink the
    gradient need not point upwards; a step that does not raise the rounded objective is halved.
    The result is the best of all steps and of `affinity` itself, on `validation` if there is one:
    a few thousand samples are learned by heart, and their acceptance then says little.

    Args:
        affinity: the rows to start near, with the bias that `pairs` were made with.
        pattern: sparse `[V_d, V_t]`, see `joint_pattern`; of its values only the places count.
        prior: `[V_t]` masses, over which each row may spread as well, as if it were one entry.
        evidence: in drafts; a row that is drafted less often than this in all of the pairs
            hardly moves.
        validation: pairs of other documents.
        progress: what the steps are drawn from, such as a progress bar.

    Returns:
        The affinity, and the best acceptance so far where it is judged: of `affinity`, then after
        each step.
    """
    rows, redistribution = _start("maximise_acceptance", pairs, affinity, pattern, prior)
    drafted = redistribution.mean_draft_probs + evidence / max(1, len(pairs))
    pace = torch.where(drafted > 0, 1 / drafted, 0.0)
    p = pairs.target_probs
    judge = pairs if validation is None else validation
    _check(judge, affinity, "maximise_acceptance")
    judging = Redistribution(judge, rows.rows, rows.targets, rows.prior)
    best, history = None, [acceptance(judge.target_probs, redistributed(judge, affinity))]
    q, size = redistribution.of(rows.masses, rows.spread), 1.0
    for step in progress(range(steps)):
        width = _ROUNDED / (1 + step / _SHARPENED_AFTER)
        by_entry, by_spread = redistribution.gradient(_rounded_slope(p, q, width))
        trial = rows.raised(size * pace, by_entry, by_spread)
        trial_q = redistribution.of(trial.masses, trial.spread)
        if _rounded(p, trial_q, width) >= _rounded(p, q, width):
            rows, q, size = trial, trial_q, min(size * 1.5, _LARGEST_STEP)
            judged = q if validation is None else judging.of(rows.masses, rows.spread)
            history.append(max(history[-1], acceptance(judge.target_probs, judged)))
            if history[-1] > history[-2]:
                best = rows
        else:
            size /= 2
            history.append(history[-1])
    return Learned(affinity if best is None else best.affinity(affinity.bias), history)


class _Rows(NamedTuple):
    """`S + U P`: entries by row and then by target, and the spread `[V_d, R]` over `[R, V_t]`."""

    rows: Tensor
    targets: Tensor
    masses: Tensor
    spread: Tensor
    prior: Tensor

    @classmethod
    def of(cls, pattern: Tensor, affinity: Affinity, prior: Tensor | None) -> _Rows:
        """Those of `affinity`, with more entries and one prior more, all still 0."""
        rows, targets, masses = entries_of(affinity)
        places = torch.cat([torch.stack([rows, targets]), pattern.coalesce().indices()], 1)
        values = torch.cat([masses.double(), torch.zeros(places.shape[1] - affinity.nnz)])
        shape = (affinity.draft_size, affinity.target_size)
        matrix = torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()
        spread, priors = affinity.spread.double(), affinity.prior.double()
        if prior is not None:
            spread = torch.nn.functional.pad(spread, (0, 1))
            priors = torch.cat([priors, (prior / prior.sum())[None]])
        rows, targets = matrix.indices().unbind(0)
        return cls(rows, targets, matrix.values(), spread, priors)

    def sums(self) -> Tensor:
        """`[V_d]`."""
        return self.spread.sum(1).index_add(0, self.rows, self.masses)

    def mixed(self, other: _Rows, share: Tensor) -> _Rows:
        """`1 - share [V_d]` of these, and `share` of the other rows, which are normalised."""
        share, other_share = 1 - share, torch.where(share > 0, share / other.sums(), 0.0)
        return self._replace(
            masses=share[self.rows] * self.masses + other_share[self.rows] * other.masses,
            spread=share[:, None] * self.spread + other_share[:, None] * other.spread,
        )

    def times(self, by_entry: Tensor, by_spread: Tensor) -> _Rows:
        """Each mass times its factor, rows normalised. A row of zeros stays as it was."""
        scaled = self._replace(masses=self.masses * by_entry, spread=self.spread * by_spread)
        return self.mixed(scaled, (scaled.sums() > 0).double())

    def raised(self, step: Tensor, by_entry: Tensor, by_spread: Tensor) -> _Rows:
        """Each mass times `exp(step_i gradient)`, `step [V_d]`, rows normalised."""
        exponents, for_spread = step[self.rows] * by_entry, step[:, None] * by_spread
        peak = torch.zeros_like(step).scatter_reduce(0, self.rows, exponents, "amax")
        if for_spread.shape[1]:
            peak = torch.maximum(peak, for_spread.amax(1))
        raised = self.times((exponents - peak[self.rows]).exp(), (for_spread - peak[:, None]).exp())
        return raised._replace(
            masses=raised.masses.clamp(min=_LEAST_MASS).where(self.masses > 0, 0.0),
            spread=raised.spread.clamp(min=_LEAST_MASS).where(self.spread > 0, 0.0),
        )

    def affinity(self, bias: Tensor) -> Affinity:
        """With `bias [V_d]`, whatever the rows sum to."""
        entries = RowMasses(self.rows, self.targets, self.masses)
        spread, prior = self.spread, self.prior
        size = prior.shape[1]
        return Affinity(**canonical_tensors(size, entries, bias=bias, spread=spread, prior=prior))


def _start(
    name: str, pairs: DraftPairs, affinity: Affinity, pattern: Tensor, prior: Tensor | None
) -> tuple[_Rows, Redistribution]:
    """Rows near those of `affinity`, with some mass wherever the pattern has an entry."""
    _check(pairs, affinity, name)
    shape = (affinity.draft_size, affinity.target_size)
    if pattern.layout == torch.strided or tuple(pattern.shape) != shape:
        raise ValueError(
            f"{name}: pattern has shape {list(pattern.shape)} and layout {pattern.layout}; needs "
            f"sparse [V_d, V_t] = {list(shape)}, as joint_pattern makes it"
        )
    if prior is not None:
        prior = token_masses(f"{name}: prior", prior, (shape[1],))
        if not prior.sum() > 0:
            raise ValueError(f"{name}: prior is 0 everywhere; needs mass, or leave it out")
    rows = _Rows.of(pattern, affinity, prior)
    redistribution = Redistribution(pairs, rows.rows, rows.targets, rows.prior)
    # An affinity's own priors are for the rows that have them; the new one is for all.
    spread = (rows.spread > 0).double()
    if prior is not None:
        spread[:, -1] = 1.0
    even = rows._replace(masses=torch.ones_like(rows.masses), spread=spread)
    drafted = redistribution.mean_draft_probs > 0
    return rows.mixed(even, torch.where(drafted, _EXPLORED, 0.0)), redistribution


def _likelihood(p: Tensor, q: Tensor) -> float:
    """`mean_n sum_x p log q`, where `0 log 0 = 0`."""
    return float(torch.xlogy(p.double(), q.double()).sum() / max(1, len(p)))


def _rounded(p: Tensor, q: Tensor, width: float) -> float:
    """`acceptance`, rounded off for q within `width p` of p; at `q = p` it lacks `width p / 4`."""
    inside = (width * p - (q - p).abs()).clamp(min=0)
    lost = torch.where(p > 0, inside.square() / (4 * width * p), 0.0)
    return float((torch.minimum(p, q) - lost).sum(dtype=torch.float64) / max(1, len(p)))


def _rounded_slope(p: Tensor, q: Tensor, width: float) -> Tensor:
    """The derivative of `_rounded` by q: 1 far below p, 1/2 at p, 0 far above."""
    slope = (0.5 + (p - q) / (2 * width * p)).clamp(0, 1)
    return torch.where(p > 0, slope, 0.0)


def _check(pairs: DraftPairs, affinity: Affinity, name: str) -> None:
    sizes = (pairs.draft_probs.shape[1], pairs.target_size)
    if sizes != (affinity.draft_size, affinity.target_size):
        raise ValueError(
            f"{name}: affinity is [{affinity.draft_size}, {affinity.target_size}]; needs "
            f"[V_d, V_t] = {list(sizes)} of the pairs"
        )
