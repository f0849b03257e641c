"""Checks of an affinity's tensors, made once so that kernels need none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_shape
from .fixed_point import ONE, differences

CANONICAL = {
    "bias": torch.float32,
    "row_offsets": torch.int32,
    "row_targets": torch.int32,
    "row_cdf": torch.int64,
    "spread_cdf": torch.int64,
    "prior_cdf": torch.int64,
}
"""The tensors that determine an affinity, and are all that a file holds."""

MAX_RANK = 4


class AffinityError(ValueError):
    """Arguments, tensors or a file that do not make an affinity."""


def check_canonical(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not the canonical state of an affinity.

    Raises:
        AffinityError: naming the tensor, its first wrong entry and what it needs to be.
    """
    for name, dtype in CANONICAL.items():
        tensor = tensors[name]
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise AffinityError(f"Affinity: {name} is {type(tensor).__name__}; needs a tensor")
        if tensor.dtype != dtype:
            raise AffinityError(f"Affinity: {name} has dtype {tensor.dtype}; needs {dtype}")
    _check_shapes(tensors)
    _check_sparse_structure(tensors)
    _check_masses(tensors)


def units_of(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The integer masses of `S` (by row), `U` and `P`, int64, from the canonical running sums."""
    offsets = tensors["row_offsets"].long()
    row_cdf = tensors["row_cdf"]
    # A row of U continues the running sums of S where they end.
    ends = torch.nn.functional.pad(row_cdf, (1, 0))[offsets[1:]]
    ends = torch.where(offsets.diff() > 0, ends, 0)[:, None]
    zeros = torch.zeros_like(tensors["prior_cdf"][:, :1])
    return (
        differences(row_cdf, offsets),
        tensors["spread_cdf"].diff(dim=1, prepend=ends),
        tensors["prior_cdf"].diff(dim=1, prepend=zeros),
    )


def _check_shapes(tensors: Mapping[str, Tensor]) -> None:
    prior_shape = list(tensors["prior_cdf"].shape)
    if len(prior_shape) != 2 or prior_shape[0] > MAX_RANK or not 0 < prior_shape[1] < 2**31:
        raise AffinityError(
            f"Affinity: prior_cdf has shape {prior_shape}; needs [R <= {MAX_RANK}, 0 < V_t < 2^31]"
        )
    draft_size, nnz = tensors["bias"].numel(), tensors["row_targets"].numel()
    if draft_size == 0:
        raise AffinityError("Affinity: bias is empty; needs [V_d] with V_d >= 1")
    needed = {
        "bias": [draft_size],
        "row_offsets": [draft_size + 1],
        "row_targets": [nnz],
        "row_cdf": [nnz],
        "spread_cdf": [draft_size, prior_shape[0]],
    }
    for name, shape in needed.items():
        check_shape(f"Affinity: {name}", tensors[name], *shape, error=AffinityError)


def _check_sparse_structure(tensors: Mapping[str, Tensor]) -> None:
    offsets, targets = tensors["row_offsets"].long(), tensors["row_targets"].long()
    rises = torch.nn.functional.pad(offsets.diff() >= 0, (1, 0), value=bool(offsets[0] == 0))
    _check(rises, "row_offsets", offsets, "it to start at 0 and never to fall")
    if int(offsets[-1]) != targets.numel():
        raise AffinityError(
            f"Affinity: row_offsets[-1] is {int(offsets[-1])}; needs {targets.numel()}"
        )
    size = tensors["prior_cdf"].shape[1]
    known = (targets >= 0) & (targets < size)
    _check(known, "row_targets", targets, f"a target id in [0, {size})")
    begins = torch.zeros_like(known)
    begins[offsets[:-1][offsets.diff() > 0]] = True
    ascends = targets > targets.roll(1)
    _check(begins | ascends, "row_targets", targets, "ids that ascend strictly within a row")


def _check_masses(tensors: Mapping[str, Tensor]) -> None:
    bias = tensors["bias"]
    _check(bias < math.inf, "bias", bias, "a finite number, or -inf for a masked token")
    for name in ("row_cdf", "spread_cdf", "prior_cdf"):
        sums = tensors[name]
        _check((sums >= 0) & (sums <= ONE), name, sums, "a running sum from 0 to 2^32")

    row_units, spread_units, prior_units = units_of(tensors)
    _check(row_units > 0, "row_cdf", tensors["row_cdf"], "to rise strictly within a row")
    _check(spread_units >= 0, "spread_cdf", tensors["spread_cdf"], "never to fall along a row")
    _check(prior_units >= 0, "prior_cdf", tensors["prior_cdf"], "never to fall along a prior")
    prior_ends = tensors["prior_cdf"][:, -1]
    _check(prior_ends == ONE, "the end of prior_cdf", prior_ends, "exactly 2^32")

    offsets = tensors["row_offsets"].long()
    row_sums = torch.nn.functional.pad(row_units.cumsum(0), (1, 0))[offsets].diff()
    row_sums = row_sums + spread_units.sum(1)
    exact = row_sums == torch.where(bias == -math.inf, 0, ONE)
    _check(exact, "the sum of row", row_sums, "exactly 2^32, or 0 where bias is -inf")


def _check(holds: Tensor, name: str, values: Tensor, needs: str) -> None:
    check_entries(f"Affinity: {name}", values, holds, needs, AffinityError)
