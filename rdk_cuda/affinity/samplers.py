"""The samplers of DESIGN section 2, each as the canonical tensors of its affinity.

`Affinity` has each of them as a constructor of the same name, and documents it there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_shape, on_host
from ..vocabulary import Vocabulary
from ..vocabulary.token_bytes import longest_beginning, token_bytes
from .entries import (
    Entries,
    canonical_tensors,
    nonnegative,
    own_entries,
    refuse_overflow,
    row_entries,
    virtual_token_weights,
)
from .fixed_point import to_float64
from .validation import AffinityError, units_of

Keep: TypeAlias = float | Sequence[float] | Tensor
"""The share of its own mass that each drafter token keeps: one number or `[V_d]`."""

_MAX_DENSE_ENTRIES = 1 << 22


def intersection(vocabulary: Vocabulary) -> dict[str, Tensor]:
    return canonical_tensors(
        vocabulary.target_size,
        own_entries(vocabulary.draft_ids),
        bias=_own_bias(vocabulary.draft_ids),
    )


def between(
    drafter_tokenizer: Any, target_tokenizer: Any, draft_size: int | None, target_size: int | None
) -> dict[str, Tensor]:
    drafter = token_bytes(drafter_tokenizer).within(draft_size)
    target = token_bytes(target_tokenizer).within(target_size)
    vocabulary = Vocabulary.between(drafter, target, draft_size=draft_size, target_size=target_size)
    ids, to = target.ids(), vocabulary.draft_ids.tolist()
    for draft_id, spelling in enumerate(drafter.spellings):
        if to[draft_id] < 0:
            to[draft_id] = longest_beginning(spelling, ids)
    targets = torch.tensor(to, dtype=torch.int64, device="cpu")
    return canonical_tensors(vocabulary.target_size, own_entries(targets), bias=_own_bias(targets))


def first_order(
    vocabulary: Vocabulary, mean_probs: Tensor, tau: float, keep: Keep
) -> dict[str, Tensor]:
    size = vocabulary.target_size
    prior = nonnegative("Affinity.first_order: mean_probs", mean_probs, (size,))
    if not (tau > 0 and math.isfinite(size * tau)):
        raise AffinityError(f"Affinity.first_order: tau is {tau}; needs a positive number")
    refuse_overflow("Affinity.first_order: mean_probs", prior.sum())
    if not prior.sum() > 0:
        raise AffinityError("Affinity.first_order: mean_probs is all 0; needs some mass")
    mean = prior / prior.sum()
    mu = torch.where(vocabulary.draft_ids >= 0, mean[vocabulary.draft_ids], 0.0)
    return _redistributing(
        "Affinity.first_order",
        vocabulary,
        Entries.none(),
        # tau (V_t, mu_i / tau): the same row, without dividing by a small number
        spread=torch.stack([torch.full_like(mu, size * tau), mu], dim=1),
        prior=torch.stack([torch.ones_like(prior), prior]),
        keep=keep,
    )


def warn_of_little_overlap(
    tensors: Mapping[str, Tensor], vocabulary: Vocabulary, mean_probs: Tensor, tau: float
) -> None:
    """Warn if the target's mean `[V_t]` and the drafter's overlap less than without an affinity.

    The drafter's mean is the target's over the tokens that both have, normalised.
    """
    mean = on_host(mean_probs).double()
    mean = mean / mean.sum()
    own = torch.where(vocabulary.draft_ids >= 0, mean[vocabulary.draft_ids], 0.0)
    plain = float(own.sum())
    own /= plain or 1.0
    rows, spread, prior = (to_float64(units) for units in units_of(tensors))
    drafted = (own @ spread) @ prior
    entries = own.repeat_interleave(tensors["row_offsets"].diff()) * rows
    drafted.index_add_(0, tensors["row_targets"].long(), entries)
    overlap = float(torch.minimum(mean, drafted).sum())
    if overlap < plain - 1e-6:  # more than rounding
        warnings.warn(
            f"Affinity.first_order: at tau = {tau} the drafter's mean overlaps the target's by "
            f"{overlap:.3f}, but with Affinity.intersection by {plain:.3f}, so fewer drafts are "
            "accepted; pass keep=0.9 or so, or use Affinity.virtual_tokens or intersection",
            UserWarning,
            stacklevel=3,
        )


def covariance(vocabulary: Vocabulary, omega: Tensor, tau: float, keep: Keep) -> dict[str, Tensor]:
    if not 0 < tau < math.inf:
        raise AffinityError(f"Affinity.covariance: tau is {tau}; needs a positive number")
    entries, floor = _similarities(vocabulary, omega)
    rows, _, values = entries
    peak = floor.scatter_reduce(0, rows, values, "amax")
    # A row of weights exp((omega - peak) / tau): none overflows, however small tau is.
    weights = torch.exp((values - peak[rows]) / tau)
    above = weights * -torch.expm1((floor[rows] - values) / tau)
    size = vocabulary.target_size
    return _redistributing(
        "Affinity.covariance",
        vocabulary,
        entries._replace(weights=above),
        spread=size * torch.exp((floor - peak) / tau)[:, None],
        prior=torch.ones(1, size, dtype=torch.float64, device="cpu"),
        keep=keep,
    )


def cold_mass(vocabulary: Vocabulary, mean_probs: Tensor) -> dict[str, Tensor]:
    size = vocabulary.target_size
    prior = nonnegative("Affinity.cold_mass: mean_probs", mean_probs, (size,))
    refuse_overflow("Affinity.cold_mass: mean_probs", prior.sum())
    prior = prior.index_fill(0, vocabulary.kept, 0.0)
    if not prior.sum() > 0:
        raise AffinityError(
            f"Affinity.cold_mass: mean_probs has no mass on the {vocabulary.pruned.numel()} pruned "
            "tokens; needs some, or use Affinity.intersection, which drafts none of them"
        )
    spread = torch.zeros(vocabulary.draft_size + 1, 1, dtype=torch.float64, device="cpu")
    spread[-1] = 1.0
    return canonical_tensors(
        size,
        own_entries(vocabulary.draft_ids),
        bias=torch.nn.functional.pad(_own_bias(vocabulary.draft_ids), (0, 1)),
        spread=spread,
        prior=prior[None],
    )


def virtual_tokens(
    vocabulary: Vocabulary,
    clusters: Tensor,
    mean_probs: Tensor,
    temperature: float,
    offset: float | Tensor | Sequence[float],
) -> dict[str, Tensor]:
    weights = virtual_token_weights(vocabulary, clusters, mean_probs, temperature=temperature)
    members = weights.nonzero().flatten()
    count = int(clusters.max()) + 1
    virtual_bias = on_host(offset).double()
    if virtual_bias.dim():
        check_shape("Affinity.virtual_tokens: offset", virtual_bias, count, error=AffinityError)
    share, cluster = weights[members], clusters.cpu().long()[members]
    entropy = torch.zeros(count, dtype=torch.float64, device="cpu")
    entropy.index_add_(0, cluster, torch.special.entr(share))
    has_mass = torch.bincount(cluster, minlength=count) > 0
    virtual_bias = torch.where(has_mass, entropy + virtual_bias, -math.inf)

    kept, order = own_entries(vocabulary.draft_ids), cluster.argsort(stable=True)
    virtual = Entries(vocabulary.draft_size + cluster, members, share)
    return canonical_tensors(
        vocabulary.target_size,
        Entries(*(torch.cat([k, v[order]]) for k, v in zip(kept, virtual, strict=True))),
        bias=torch.cat([_own_bias(vocabulary.draft_ids), virtual_bias]),
    )


def from_rows(
    rows: Sequence[Mapping[int, float]] | Tensor,
    target_size: int | None,
    spread: Tensor | None,
    prior: Tensor | None,
    bias: Tensor | None,
) -> dict[str, Tensor]:
    draft_size, target_size = _sizes_of_rows(rows, target_size, spread, prior)
    if spread is not None and prior is not None:
        rank = prior.shape[0]
        spread = nonnegative("Affinity.from_rows: spread", spread, (draft_size, rank))
        prior = nonnegative("Affinity.from_rows: prior", prior, (rank, target_size))
    if bias is None:
        bias = torch.zeros(draft_size, dtype=torch.float32, device="cpu")
    check_shape("Affinity.from_rows: bias", bias, draft_size, error=AffinityError)
    entries = row_entries("Affinity.from_rows: rows", rows, target_size)
    totals = entries.row_sums(draft_size)
    if spread is not None:
        totals += spread.sum(1)
    refuse_overflow("Affinity.from_rows: row ", totals)
    bias = bias.detach().cpu().double() + totals.log()  # log 0 = -inf masks the row
    return canonical_tensors(target_size, entries, bias=bias, spread=spread, prior=prior)


def _redistributing(
    name: str,
    vocabulary: Vocabulary,
    entries: Entries,
    *,
    spread: Tensor,
    prior: Tensor,
    keep: Keep,
) -> dict[str, Tensor]:
    """Build `keep E + (1 - keep) (S + U P)`; `E` maps the tokens that the target has."""
    size = vocabulary.draft_size
    kept = _kept_shares(name, vocabulary, keep)
    if bool(kept.any()):
        # The kept mass is in proportion to the row, which is not normalised yet.
        totals = entries.row_sums(size) + spread.sum(1)
        own = own_entries(vocabulary.draft_ids)
        own = own._replace(weights=(kept * totals)[own.rows])
        rest = entries._replace(weights=entries.weights * (1 - kept)[entries.rows])
        entries = rest.plus(own, (size, vocabulary.target_size))
        spread = spread * (1 - kept)[:, None]
    bias = torch.zeros(size, dtype=torch.float32, device="cpu")
    return canonical_tensors(vocabulary.target_size, entries, bias=bias, spread=spread, prior=prior)


def _kept_shares(name: str, vocabulary: Vocabulary, keep: Keep) -> Tensor:
    """`[V_d]` float64, 0 for a token that the target lacks."""
    shares = on_host(keep).double()
    size = vocabulary.draft_size
    if shares.dim():
        check_shape(f"{name}: keep", shares, size, error=AffinityError)
    sound = (shares >= 0) & (shares <= 1)  # not of NaN
    check_entries(f"{name}: keep", shares, sound, "a share from 0 to 1", AffinityError)
    return torch.where(vocabulary.draft_ids >= 0, shares, 0.0)


def _similarities(vocabulary: Vocabulary, omega: Tensor) -> tuple[Entries, Tensor]:
    """The drafter's entries of Omega that exceed the floor of their row, and the floors, `[V_d]`.

    The floor is the least entry of a dense row, 0 for a sparse one. A token that the target lacks
    has no entries and floor 0.
    """
    size = vocabulary.target_size
    omega = on_host(omega)
    sparse = omega.layout != torch.strided
    if list(omega.shape) != [size, size] or omega.is_complex() or (sparse and omega.dense_dim()):
        raise AffinityError(
            f"Affinity.covariance: omega has shape {list(omega.shape)}, dtype {omega.dtype} and "
            f"layout {omega.layout}; needs [V_t, V_t] = [{size}, {size}] real numbers, dense or "
            "sparse in both dimensions"
        )
    dense_entries = 0 if sparse else vocabulary.draft_size * size
    if dense_entries > _MAX_DENSE_ENTRIES:
        raise AffinityError(
            f"Affinity.covariance: omega is dense and V_d x V_t, {vocabulary.draft_size} x {size}, "
            "is more than 2^22 entries; needs a sparse one, such as "
            "(omega - least).clamp(min=0).to_sparse(), in which all below `least` count as that"
        )
    omega = omega.to_sparse().coalesce() if sparse else omega
    finite = (omega.values() if sparse else omega).isfinite()
    if not bool(finite.all()):
        wrong = omega.indices().T[~finite] if sparse else (~finite).nonzero()
        at = wrong[0].tolist()
        raise AffinityError(
            f"Affinity.covariance: omega{at} is {omega[tuple(at)].item()}; needs finite numbers"
        )
    known = (vocabulary.draft_ids >= 0).nonzero().flatten()
    floor = torch.zeros(vocabulary.draft_size, dtype=torch.float64, device="cpu")
    drafters = omega.index_select(0, vocabulary.draft_ids[known]).double()
    if sparse:
        drafters = drafters.coalesce()
        (row, targets), values = drafters.indices().unbind(0), drafters.values()
    else:
        floor[known] = least = drafters.amin(1)
        row, targets = (drafters > least[:, None]).nonzero().unbind(1)
        values = drafters[row, targets]
    above = values > floor[known[row]]
    return Entries(known[row[above]], targets[above], values[above]), floor


def _own_bias(ids: Tensor) -> Tensor:
    """0 for the drafter tokens that the target has, -inf for the others: `[V_d]` float64."""
    return torch.where(ids >= 0, 0.0, -math.inf).double()


def _sizes_of_rows(
    rows: Sequence[Mapping[int, float]] | Tensor,
    target_size: int | None,
    spread: Tensor | None,
    prior: Tensor | None,
) -> tuple[int, int]:
    if (spread is None) != (prior is None):
        raise AffinityError("Affinity.from_rows: got one of spread and prior; needs both or none")
    widths = {} if target_size is None else {"target_size": target_size}
    for name, matrix in (("rows", rows), ("prior", prior)):
        if isinstance(matrix, Tensor):
            check_shape(f"Affinity.from_rows: {name}", matrix, "n", "V_t", error=AffinityError)
            widths[name] = matrix.shape[1]
    if len(set(widths.values())) != 1:
        raise AffinityError(
            f"Affinity.from_rows: got {widths or 'no target_size'}; needs one V_t, as target_size "
            "or as the width of rows or of prior"
        )
    return len(rows), next(iter(widths.values()))
