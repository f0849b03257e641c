"""Turn non-negative weights, in the forms that people have them, into an affinity's tensors."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_tensor, on_host
from ..vocabulary import Vocabulary
from .fixed_point import apportion, running_sums
from .validation import AffinityError


class Entries(NamedTuple):
    """A sparse `[V_d, V_t]` matrix, ascending by row and then by target; not normalised yet.

    `rows` and `targets` are int64 `[nnz]`, `weights` float64 `[nnz]`.
    """

    rows: Tensor
    targets: Tensor
    weights: Tensor

    @classmethod
    def none(cls) -> Entries:
        nothing = torch.zeros(0, dtype=torch.int64, device="cpu")
        return cls(nothing, nothing, nothing.double())

    def row_sums(self, draft_size: int) -> Tensor:
        """Return `[V_d]` float64."""
        sums = torch.zeros(draft_size, dtype=torch.float64, device="cpu")
        return sums.index_add_(0, self.rows, self.weights)

    def plus(self, other: Entries, shape: tuple[int, int]) -> Entries:
        """Return the sum of two matrices `[V_d, V_t]`."""
        rows, targets, weights = (torch.cat(parts) for parts in zip(self, other, strict=True))
        matrix = torch.sparse_coo_tensor(
            torch.stack([rows, targets]), weights, shape, check_invariants=False, device="cpu"
        ).coalesce()
        rows, targets = matrix.indices().unbind(0)
        return Entries(rows, targets, matrix.values())


def nonnegative(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`values` as float64 on the CPU, if they are non-negative, finite and of the given shape."""
    numbers = on_host(values)
    check_tensor(name, numbers, "real numbers", *shape, error=AffinityError)
    numbers = numbers.to(torch.float64)
    sound = (numbers >= 0) & ~numbers.isinf()  # not of NaN
    needs = "finite numbers that are not negative"
    check_entries(name, numbers, sound, needs, AffinityError)
    return numbers


def refuse_overflow(name: str, sums: Tensor) -> None:
    """Refuse finite numbers whose sum is not finite. `name` is followed by a place."""
    if bool(sums.isinf().any()):
        at = sums.isinf().nonzero()[0].tolist()
        raise AffinityError(
            f"{name}{', '.join(map(str, at))} sums to inf in float64; needs a finite sum: divide "
            "its numbers by the largest of them"
        )


def row_entries(
    name: str, rows: Sequence[Mapping[int, float]] | Tensor, target_size: int
) -> Entries:
    """Return the entries of `rows`, one mapping or one matrix row for each drafter token."""
    if isinstance(rows, Tensor):
        return _of_matrix(name, rows.detach().cpu())
    return _of_mappings(name, rows, target_size)


def _of_matrix(name: str, matrix: Tensor) -> Entries:
    if matrix.layout == torch.strided:
        rows, targets = matrix.nonzero().unbind(1)
        values = matrix[rows, targets]
    else:
        matrix = matrix.to_sparse().coalesce()
        (rows, targets), values = matrix.indices().unbind(0), matrix.values()
    return Entries(rows, targets, nonnegative(f"{name}, entry ", values, (values.numel(),)))


def _of_mappings(name: str, rows: Sequence[Mapping[int, float]], target_size: int) -> Entries:
    found: list[tuple[int, int, float]] = []
    for i, row in enumerate(rows):
        try:
            entries = sorted((index(token), float(weight)) for token, weight in row.items())
        except (AttributeError, TypeError, ValueError) as error:
            raise AffinityError(
                f"{name}[{i}] is {reprlib.repr(row)}; needs a mapping of ids to weights ({error})"
            ) from error
        for token, weight in entries:
            if not (0 <= token < target_size and 0 <= weight < math.inf):
                raise AffinityError(
                    f"{name}[{i}] has {token}: {weight}; needs target ids in [0, {target_size}) "
                    "and finite weights, none negative"
                )
            found.append((i, token, weight))
    numbers = torch.tensor(found, dtype=torch.float64, device="cpu").reshape(len(found), 3)
    drafts, targets = numbers[:, :2].long().unbind(1)
    return Entries(drafts.contiguous(), targets.contiguous(), numbers[:, 2].contiguous())


def own_entries(ids: Tensor) -> Entries:
    """Map each drafter token to its target id in `[V_d]`, -1 to none."""
    rows = (ids >= 0).nonzero().flatten()
    return Entries(rows, ids[rows], torch.ones(rows.numel(), dtype=torch.float64, device="cpu"))


def offsets_of(ids: Tensor, size: int) -> Tensor:
    """Find where each id below `size` begins in the sorted `ids`: `[size + 1]` int32."""
    counts = torch.bincount(ids, minlength=size)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def canonical_tensors(
    target_size: int,
    entries: Entries,
    *,
    bias: Tensor,
    spread: Tensor | None = None,
    prior: Tensor | None = None,
) -> dict[str, Tensor]:
    """The canonical tensors of `S + U P`, its rows and priors normalised and rounded to units.

    Args:
        entries: `S`. Entries that round to no units are dropped.
        bias: `[V_d]`. A row of bias -inf is emptied; every other one needs mass.
        spread, prior: `[V_d, R]` and `[R, V_t]` float64.
    """
    bias = bias.to(torch.float32)
    masked = bias == -math.inf
    size = bias.numel()
    if spread is None or prior is None:
        spread = torch.zeros(size, 0, dtype=torch.float64, device="cpu")
        prior = torch.zeros(0, target_size, dtype=torch.float64, device="cpu")
    refuse_overflow("Affinity: prior ", prior.sum(1))
    empty = (~(prior.sum(1) > 0)).nonzero()
    if empty.numel():
        raise AffinityError(
            f"Affinity: prior {int(empty[0])} has no mass; needs some, or leave it out"
        )

    rows, targets, weights = (part[~masked[entries.rows]] for part in entries)
    spread = spread.masked_fill(masked[:, None], 0.0)
    rank = spread.shape[1]
    units = apportion(  # a row's entries and its spread share the one sum
        torch.cat([weights, spread.flatten()]),
        torch.cat([rows, torch.arange(size, device="cpu").repeat_interleave(rank)]),
        size,
    )
    row_units, spread_units = units[: rows.numel()], units[rows.numel() :]
    has_units = row_units > 0
    rows, targets, row_units = rows[has_units], targets[has_units], row_units[has_units]
    row_offsets = offsets_of(rows, size)
    row_sums = torch.zeros(size, dtype=torch.int64, device="cpu").index_add_(0, rows, row_units)
    prior_units = apportion(
        prior.flatten(), torch.arange(rank, device="cpu").repeat_interleave(target_size), rank
    )
    return {
        "bias": bias,
        "row_offsets": row_offsets,
        "row_targets": targets.to(torch.int32),
        "row_cdf": running_sums(row_units, row_offsets.long()),
        "spread_cdf": row_sums[:, None] + spread_units.view(size, rank).cumsum(1),
        "prior_cdf": prior_units.view(rank, target_size).cumsum(1),
    }


def virtual_token_weights(
    vocabulary: Vocabulary, clusters: Tensor, mean_probs: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """The share of each pruned token in its virtual token (DESIGN section 2): `w`, `[V_t]` float64.

    It is proportional to `mean_probs^(1 / temperature)` in each cluster, where it sums to 1, or to
    0 if all of its members have probability 0; 0 for tokens in none. `clusters` is `[V_t]`
    integers, -1 for none and for kept tokens.
    """
    size = vocabulary.target_size
    check_tensor("virtual tokens: clusters", clusters, "integers", size, error=AffinityError)
    clusters = clusters.cpu().long()
    allowed = torch.full_like(clusters, size)
    allowed[vocabulary.kept] = 0
    sound = (clusters >= -1) & (clusters < allowed)
    needs = f"-1 to {size - 1}, and -1 of a token that is kept"
    check_entries("virtual tokens: clusters", clusters, sound, needs, AffinityError)
    if not 0 < temperature < math.inf:
        raise AffinityError(f"virtual tokens: temperature is {temperature}; needs more than 0")

    probs = nonnegative("virtual tokens: mean_probs", mean_probs, (size,))
    members = ((clusters >= 0) & (probs > 0)).nonzero().flatten()
    of = clusters[members]
    log_probs = probs[members].log()
    # Relative to the cluster's likeliest member, or low temperatures underflow.
    peak = torch.full((size,), -math.inf, dtype=torch.float64, device="cpu")
    peak.scatter_reduce_(0, of, log_probs, "amax")
    powers = ((log_probs - peak[of]) / temperature).exp()
    totals = torch.zeros_like(peak).index_add_(0, of, powers)
    weights = torch.zeros_like(probs)
    weights[members] = powers / totals[of]
    return weights
