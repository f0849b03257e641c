"""The samplers of DESIGN section 2, each as the canonical tensors of its affinity.

`Affinity` has each of them as a constructor of the same name, and documents it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .masses import (
    RowMasses,
    canonical_tensors,
    kept_masses,
    row_masses,
    token_masses,
    virtual_token_weights,
)
from .validation import AffinityError
from .vocabulary import Vocabulary

__all__ = ["first_order", "from_rows", "intersection", "virtual_tokens"]


def intersection(vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Kept tokens to themselves, the others masked."""
    return canonical_tensors(
        vocabulary.target_size, kept_masses(vocabulary), bias=_kept_bias(vocabulary)
    )


def first_order(vocabulary: Vocabulary, mean_probs: Tensor, tau: float) -> dict[str, Tensor]:
    """Two priors, the uniform one and the mean."""
    size = vocabulary.target_size
    prior = token_masses("Affinity.first_order: mean_probs", mean_probs, (size,))
    if not (tau > 0 and math.isfinite(size * tau)):
        raise AffinityError(f"Affinity.first_order: tau is {tau}; needs a positive number")
    if not prior.sum() > 0:
        raise AffinityError("Affinity.first_order: mean_probs is all 0; needs some mass")
    mean = prior / prior.sum()
    mu = torch.where(vocabulary.draft_ids >= 0, mean[vocabulary.draft_ids], 0.0)
    return canonical_tensors(
        size,
        RowMasses.none(),
        bias=torch.zeros(vocabulary.draft_size),
        # tau (V_t, mu_i / tau): the same row, without dividing by a small number
        spread=torch.stack([torch.full_like(mu, size * tau), mu], dim=1),
        prior=torch.stack([torch.ones_like(prior), prior]),
    )


def virtual_tokens(
    vocabulary: Vocabulary,
    clusters: Tensor,
    prior: Tensor,
    temperature: float,
    offset: float | Tensor | Sequence[float],
) -> dict[str, Tensor]:
    """Kept tokens to themselves, virtual ones to the members of their cluster."""
    weights = virtual_token_weights(vocabulary, clusters, prior, temperature=temperature)
    members = weights.nonzero().flatten()
    count = int(clusters.max()) + 1
    virtual_bias = torch.as_tensor(offset, dtype=torch.float64).cpu()
    if virtual_bias.shape not in ((), (count,)):
        raise AffinityError(
            f"Affinity.virtual_tokens: offset has shape {list(virtual_bias.shape)}; needs a "
            f"number or [K] = [{count}], one for each cluster"
        )
    share, cluster = weights[members], clusters.cpu().long()[members]
    entropy = torch.zeros(count, dtype=torch.float64)
    entropy.index_add_(0, cluster, torch.special.entr(share))
    has_mass = torch.bincount(cluster, minlength=count) > 0
    virtual_bias = torch.where(has_mass, entropy + virtual_bias, -math.inf)

    kept, order = kept_masses(vocabulary), cluster.argsort(stable=True)
    virtual = RowMasses(vocabulary.draft_size + cluster, members, share)
    return canonical_tensors(
        vocabulary.target_size,
        RowMasses(*(torch.cat([k, v[order]]) for k, v in zip(kept, virtual, strict=True))),
        bias=torch.cat([_kept_bias(vocabulary), virtual_bias]),
    )


def from_rows(
    rows: Sequence[Mapping[int, float]] | Tensor,
    target_size: int | None,
    spread: Tensor | None,
    prior: Tensor | None,
    bias: Tensor | None,
) -> dict[str, Tensor]:
    """Weights as they are given."""
    draft_size, target_size = _sizes_of_rows(rows, target_size, spread, prior)
    if spread is not None and prior is not None:
        rank = prior.shape[0]
        spread = token_masses("Affinity.from_rows: spread", spread, (draft_size, rank))
        prior = token_masses("Affinity.from_rows: prior", prior, (rank, target_size))
    if bias is None:
        bias = torch.zeros(draft_size)
    if bias.shape != (draft_size,):
        raise AffinityError(
            f"Affinity.from_rows: bias has shape {list(bias.shape)}; needs [{draft_size}], "
            "one number for each row"
        )
    entries = row_masses("Affinity.from_rows: rows", rows, target_size)
    totals = torch.zeros(draft_size, dtype=torch.float64)
    totals.index_add_(0, entries.rows, entries.masses)
    if spread is not None:
        totals += spread.sum(1)
    bias = bias.detach().cpu().double() + totals.log()  # log 0 = -inf masks the row
    return canonical_tensors(target_size, entries, bias=bias, spread=spread, prior=prior)


def _kept_bias(vocabulary: Vocabulary) -> Tensor:
    """0 for the drafter tokens that the target has, -inf for the others: `[V_d]` float64."""
    return torch.where(vocabulary.draft_ids >= 0, 0.0, -math.inf).double()


def _sizes_of_rows(
    rows: Sequence[Mapping[int, float]] | Tensor,
    target_size: int | None,
    spread: Tensor | None,
    prior: Tensor | None,
) -> tuple[int, int]:
    """`V_d` and `V_t` of the arguments of `from_rows`, where they agree on them."""
    if (spread is None) != (prior is None):
        raise AffinityError("Affinity.from_rows: got one of spread and prior; needs both or none")
    widths = {} if target_size is None else {"target_size": target_size}
    for name, matrix in (("rows", rows), ("prior", prior)):
        if isinstance(matrix, Tensor):
            if matrix.dim() != 2:
                raise AffinityError(
                    f"Affinity.from_rows: {name} has shape {list(matrix.shape)}; needs two "
                    "dimensions, the second of them V_t"
                )
            widths[name] = matrix.shape[1]
    if len(set(widths.values())) != 1:
        raise AffinityError(
            f"Affinity.from_rows: got {widths or 'no target_size'}; needs one V_t, as target_size "
            "or as the width of rows or of prior"
        )
    return len(rows), next(iter(widths.values()))
