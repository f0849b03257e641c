"""The largest of the joint masses `E[y_i p(x)]`, row by row, without the matrix `[rows, V_t]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .pairs import sparse_rows

__all__ = ["TargetMatrix"]

_BLOCK_ROWS = 128  # few enough that [n, rows] stays in the cache at n = 2000


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
        samples = torch.arange(count).repeat_interleave(targets.shape[1])[order]
        matrix = sparse_rows(
            torch.nn.functional.pad(offsets, (1, 0)),
            samples,
            probs.flatten()[order] / max(1, count),
            (tokens.numel() + 1, count),
        )
        place = torch.full((target_size,), tokens.numel())
        place[tokens] = torch.arange(tokens.numel())
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
