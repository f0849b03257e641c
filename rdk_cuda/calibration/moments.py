"""How the target's probabilities of two tokens go together, for `Affinity.covariance`.

The kernel of arXiv:2506.03206 is `softmax(Omega / tau)` of the covariance or the second moment of
the target's distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..vocabulary import Vocabulary
from .pairs import sparse_rows
from .recording.samples import Samples

__all__ = ["second_moment"]

_BLOCK_ROWS = 128  # few enough that [n, rows] stays in the cache at n = 2000


@torch.no_grad()
def second_moment(
    samples: Samples,
    vocabulary: Vocabulary,
    temperature: float,
    *,
    entries: int | None = None,
    centered: bool = False,
) -> Tensor:
    """`E[p p^T]`, or the covariance `E[p p^T] - E[p] E[p]^T`, in the rows of kept tokens.

    Of the samples' recorded tokens: where m is less than V_t, the others count as 0.

    Args:
        temperature: of the target, one of those of the samples.
        entries: only the so many largest positive ones of each row; lower ones would count as 0,
            the floor of a sparse Omega. None: all that are not 0, for small vocabularies: their
            number grows with V_d V_t. `.to_dense()` then gives `Affinity.covariance` the negative
            ones too.
        centered: the covariance.

    Returns:
        Sparse `[V_t, V_t]` float32, coalesced; the rows of pruned tokens are empty.

    Raises:
        ValueError: a temperature that was not recorded, or less than 1 entry.

    Example:
        >>> samples = Samples(
        ...     hidden=torch.zeros(1, 2),
        ...     targets=torch.tensor([[2, 0]], dtype=torch.int32),
        ...     target_logits=torch.tensor([[0.75, 0.25]]).log(),
        ...     temperatures=(1.0,),
        ...     log_normalizers=torch.zeros(1, 1),
        ...     contexts=torch.full((1, 1), -1, dtype=torch.int32),
        ...     documents=torch.zeros(1, dtype=torch.int64),
        ... )
        >>> second_moment(samples, Vocabulary([0], target_size=3), 1.0).to_dense()
        tensor([[0.0625, 0.0000, 0.1875],
                [0.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    if entries is not None and entries < 1:
        raise ValueError(f"second_moment: entries is {entries}; needs at least 1, or None for all")
    size, probs = vocabulary.target_size, samples.target_probs(temperature)
    targets = samples.targets.long()
    target = TargetMatrix.of(targets, probs, size)
    # A token that no sample has is 0 at every position, and so is its row.
    rows = vocabulary.kept[target.place[vocabulary.kept] < target.tokens.numel()]
    mean = torch.zeros(size, dtype=torch.float32, device="cpu")
    mean.index_add_(0, targets.flatten(), probs.flatten()).div_(max(1, len(probs)))

    def probs_of(block: slice) -> Tensor:
        part = rows[block]
        column = torch.full((size,), part.numel(), dtype=torch.int64, device="cpu")
        column[part] = torch.arange(part.numel(), device="cpu")
        dense = probs.new_zeros(len(probs), part.numel() + 1)
        return dense.scatter_(1, column[targets], probs)[:, :-1].contiguous()

    places = [torch.zeros(2, 0, dtype=torch.int64, device="cpu")]
    values = [torch.zeros(0, dtype=torch.float32, device="cpu")]
    for block, joint in target.joint_with(rows.numel(), probs_of):
        moments = joint[:, :-1]
        if centered:
            moments = moments - mean[rows[block], None] * mean[target.tokens]
        if entries is None:
            row, column = moments.nonzero().unbind(1)
        else:
            top, column = moments.topk(min(entries, moments.shape[1]))
            row, rank = (top > 0).nonzero().unbind(1)
            column = column[row, rank]
        places.append(torch.stack([rows[block][row], target.tokens[column]]))
        values.append(moments[row, column])
    return torch.sparse_coo_tensor(
        torch.cat(places, 1), torch.cat(values), (size, size), check_invariants=False, device="cpu"
    ).coalesce()


class TargetMatrix(NamedTuple):
    """The target's recorded probabilities by token.

    Attributes:
        tokens: `[U]` int64, the tokens that some sample has, ascending.
        place: `[V_t]` int64, where each token is in `tokens`, U if it is not.
        matrix: `[U + 1, n]` in compressed rows, p divided by n. Its last row is empty.
    """

    tokens: Tensor
    place: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, targets: Tensor, probs: Tensor, target_size: int) -> TargetMatrix:
        """Of `targets` and `probs`, both `[n, m]`."""
        count = targets.shape[0]
        tokens, row = targets.flatten().unique(return_inverse=True)
        order = row.argsort(stable=True)
        offsets = torch.bincount(row, minlength=tokens.numel() + 1).cumsum(0)
        samples = torch.arange(count, device="cpu").repeat_interleave(targets.shape[1])[order]
        matrix = sparse_rows(
            torch.nn.functional.pad(offsets, (1, 0)),
            samples,
            probs.flatten()[order] / max(1, count),
            (tokens.numel() + 1, count),
        )
        place = torch.full((target_size,), tokens.numel(), dtype=torch.int64, device="cpu")
        place[tokens] = torch.arange(tokens.numel(), device="cpu")
        return cls(tokens, place, matrix)

    def joint_with(
        self, size: int, values: Callable[[slice], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """`E[y_i p(x)]` as `[b, U + 1]` for one block of rows i of `size` after the other.

        Args:
            values: from a block of i to `y`, `[n, b]`.
        """
        for at in range(0, size, _BLOCK_ROWS):
            block = slice(at, min(at + _BLOCK_ROWS, size))
            yield block, torch.sparse.mm(self.matrix, values(block)).T.contiguous()
