"""The drafter's small LM head: the rows of the full one that it keeps, and virtual rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .._ops.inputs import check_shape, check_tensor
from ..affinity import Affinity
from ..vocabulary import Vocabulary

FullHead = tuple[Tensor, Tensor | None]
"""A drafter's own LM head: weight `[V_t, d]`, and bias `[V_t]` or None."""


def prune_head(
    weight: Tensor, bias: Tensor | None, vocabulary: Vocabulary, *, virtual: Affinity | None = None
) -> tuple[Tensor, Tensor | None]:
    """Make the head `[V_d, d]` of a drafter that keeps `vocabulary`: kept rows, then virtual ones.

    A virtual row is the mean of the full head's rows over what the affinity makes of the virtual
    token, `sum_c w_c h_c` (DESIGN section 2, "Virtual tokens").

    Args:
        weight, bias: `[V_t, d]` and `[V_t]`, or None, the full head in any floating dtype.
        virtual: an affinity whose first `V_hot = vocabulary.draft_size` drafter tokens are those
            of the vocabulary and whose further ones are virtual, as `Affinity.virtual_tokens`
            and `Affinity.cold_mass` make them. None: no virtual rows.

    Returns:
        `[V_hot + K, d]` and `[V_hot + K]` (or None), in the dtype and on the device of `weight`
        and `bias`.

    Raises:
        ValueError: shapes that disagree, or a drafter token without a row in the full head.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
        >>> vocabulary, clusters = Vocabulary([0], target_size=3), torch.tensor([-1, 0, 0])
        >>> affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.tensor([2.0, 1, 1]))
        >>> prune_head(weight, None, vocabulary, virtual=affinity)[0]
        tensor([[1., 0.],
                [0., 3.]])
    """
    check_head("prune_head", weight, bias, vocabulary)
    if vocabulary.kept.numel() < vocabulary.draft_size:
        missing = int((vocabulary.draft_ids < 0).nonzero()[0])
        raise ValueError(
            f"prune_head: drafter token {missing} has no target id; needs a row in the full head"
        )
    if virtual is not None and (
        virtual.target_size != vocabulary.target_size or virtual.draft_size < vocabulary.draft_size
    ):
        raise ValueError(
            f"prune_head: virtual has {virtual.target_size} target and {virtual.draft_size} "
            f"drafter tokens; needs {vocabulary.target_size}, and at least {vocabulary.draft_size}"
        )
    small = [_small(weight, vocabulary, virtual)]
    if bias is not None:
        small.append(_small(bias[:, None], vocabulary, virtual)[:, 0])
    return small[0], small[1] if bias is not None else None


def _small(rows: Tensor, vocabulary: Vocabulary, virtual: Affinity | None) -> Tensor:
    rows, kept = rows.detach(), vocabulary.draft_ids.to(rows.device)
    if virtual is None:
        return rows[kept]
    means = virtual.expectation(rows, first_row=vocabulary.draft_size)
    return torch.cat([rows[kept], means.to(rows.dtype)])


def check_head(name: str, weight: Tensor, bias: Tensor | None, vocabulary: Vocabulary) -> None:
    """Refuse a head that is not one of the target's vocabulary."""
    size = vocabulary.target_size
    check_tensor(f"{name}: weight", weight, "floats", size, "d")
    if bias is not None:
        check_shape(f"{name}: bias", bias, size)
