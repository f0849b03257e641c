"""Drafter and target side by side at the sampled positions: what affinities are learned from.

    q(x) = given(x) + sum_i q'_i S[i, x] + sum_r s_r P[r, x],      s_r = sum_i q'_i U[i, r]

at the target's likeliest tokens x only, and its gradient by S and U (DESIGN section 2).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..affinity import Affinity
from .drafter import FullHead, PrunedDrafter
from .samples import Samples

__all__ = [
    "DraftPairs",
    "Redistribution",
    "draft_pairs",
    "entries_of",
    "redistributed",
    "sparse_rows",
]

_BLOCK_ENTRIES = 1 << 25  # of a dense block that is held at a time, 128 MB in float32


@dataclass(frozen=True, eq=False)
class DraftPairs:
    """A drafter's probabilities over its own tokens, and the target's over its likeliest.

    All of one floating dtype, float32 for real vocabularies: n = 2000 with V_d = 32768 are 262 MB.

    Attributes:
        draft_probs: `[n, V_d]`, q'. Rows sum to 1, or to less where there are dynamic tokens.
        targets: `[n, m]` int64, target ids, none twice in a row.
        target_probs: `[n, m]`, p at `targets`.
        given: `[n, m]`, what the dynamic tokens alone give to `targets`.
        target_size: `V_t`.
    """

    draft_probs: Tensor
    targets: Tensor
    target_probs: Tensor
    given: Tensor
    target_size: int

    def __len__(self) -> int:
        return self.targets.shape[0]


@torch.no_grad()
def draft_pairs(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> DraftPairs:
    """What `drafter` and the target gave to each sample at `temperature`.

    The drafter's affinity counts only with its bias, its dynamic tokens by what they offer.

    Args:
        full_head: for the logits of dynamic tokens.
        temperature: one of those of the samples, positive.
    """
    bias = drafter.affinity.bias
    shape = (len(samples), drafter.affinity.draft_size)
    pairs = DraftPairs(
        torch.empty(shape),
        samples.targets.long(),
        samples.target_probs(temperature),
        torch.zeros(samples.targets.shape),
        drafter.affinity.target_size,
    )
    for rows in _blocks(len(samples), max(shape[1], pairs.target_size)):
        part = samples.select(torch.arange(rows.start, rows.stop))
        columns = drafter.columns(full_head, part.hidden, part.contexts)
        logits = [columns["draft_logits"] / temperature + bias]
        if "dynamic_tokens" in columns:
            tokens = columns["dynamic_tokens"].long()
            unused = (tokens < 0) | (tokens >= pairs.target_size)
            dynamic = columns["dynamic_logits"] / temperature
            logits.append(dynamic.masked_fill(unused, -torch.inf))
        shares = torch.cat(logits, 1).softmax(1)
        pairs.draft_probs[rows] = shares[:, : shape[1]]
        if "dynamic_tokens" in columns:
            given = torch.zeros(len(part), pairs.target_size)
            given.scatter_add_(1, tokens.masked_fill(unused, 0), shares[:, shape[1] :])
            pairs.given[rows] = given.gather(1, pairs.targets[rows])
    return pairs


class Redistribution:
    """`q` at the targets of the pairs, as a linear function of the masses of fixed entries.

    Args:
        rows, targets: `[nnz]` int64, the entries of S, ascending by row and then by target.
        prior: `[R, V_t]`, each summing to 1.
    """

    def __init__(self, pairs: DraftPairs, rows: Tensor, targets: Tensor, prior: Tensor) -> None:
        self.pairs, self.rows, self.targets = pairs, rows, targets
        self.prior = prior.to(pairs.draft_probs.dtype)
        tokens, column = targets.unique(return_inverse=True)
        self.order = column.argsort(stable=True)
        counts = torch.bincount(column, minlength=tokens.numel() + 1)
        # One column more, without entries, for all tokens that no entry leads to.
        self.column_offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        column_of = torch.full((pairs.target_size,), tokens.numel())
        column_of[tokens] = torch.arange(tokens.numel())
        self.columns = column_of[pairs.targets]

    @property
    def mean_draft_probs(self) -> Tensor:
        """`[V_d]` float64, the mean of q'."""
        return self.pairs.draft_probs.sum(0, dtype=torch.float64) / len(self.pairs)

    def of(self, masses: Tensor, spread: Tensor) -> Tensor:
        """`q` at the targets, `[n, m]`, of S with `masses [nnz]` and U = `spread [V_d, R]`."""
        pairs, dtype = self.pairs, self.pairs.draft_probs.dtype
        matrix = self._matrix(masses.to(dtype))
        result = torch.empty_like(pairs.target_probs)
        for part in self._blocks():
            draft = pairs.draft_probs[part]
            by_column = torch.sparse.mm(matrix, draft.T.contiguous())
            q = by_column.gather(0, self.columns[part].T).T + pairs.given[part]
            for prior, share in zip(self.prior, (draft @ spread.to(dtype)).T, strict=True):
                q += share[:, None] * prior[pairs.targets[part]]
            result[part] = q
        return result

    def gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of `mean_n sum_x weights q` by the masses and the spread, float64.

        Args:
            weights: `[n, m]`.

        Returns:
            `[nnz]` and `[V_d, R]`: `E[q'_i w(x)]` and `E[q'_i sum_x w(x) P[r, x]]`.
        """
        pairs, size = self.pairs, self.pairs.draft_probs.shape[1]
        weights = weights.to(pairs.draft_probs.dtype)
        sums = torch.zeros(self.rows.numel(), dtype=torch.float64)
        spread = torch.zeros(size, self.prior.shape[0], dtype=torch.float64)
        nothing = self._matrix(torch.zeros(self.rows.numel(), dtype=weights.dtype))
        for part in self._blocks():
            draft = pairs.draft_probs[part]
            by_column = draft.new_zeros(nothing.shape[0], draft.shape[0])
            by_column.scatter_(0, self.columns[part].T, weights[part].T)
            sums += torch.sparse.sampled_addmm(nothing, by_column, draft, beta=0.0).values()
            for r, prior in enumerate(self.prior):
                spread[:, r] += draft.T @ (weights[part] * prior[pairs.targets[part]]).sum(1)
        masses = torch.empty_like(sums).index_copy_(0, self.order, sums)
        return masses / len(pairs), spread / len(pairs)

    def _matrix(self, masses: Tensor) -> Tensor:
        shape = (self.column_offsets.numel() - 1, self.pairs.draft_probs.shape[1])
        return sparse_rows(self.column_offsets, self.rows[self.order], masses[self.order], shape)

    def _blocks(self) -> Iterator[slice]:
        return _blocks(len(self.pairs), max(self.column_offsets.numel(), self.prior.shape[1]))


def redistributed(pairs: DraftPairs, affinity: Affinity) -> Tensor:
    """`q` at the targets of the pairs, `[n, m]`."""
    rows, targets, masses = entries_of(affinity)
    return Redistribution(pairs, rows, targets, affinity.prior).of(masses, affinity.spread)


def acceptance(p: Tensor, q: Tensor) -> float:
    """`mean_n sum_x min(p, q)` of `[n, m]` each."""
    return float(torch.minimum(p, q).sum(dtype=torch.float64) / max(1, len(p)))


def entries_of(affinity: Affinity) -> tuple[Tensor, Tensor, Tensor]:
    """`S` by row and then by target: rows and targets int64, masses float32, all `[nnz]`."""
    drafts = torch.arange(affinity.draft_size)
    targets = affinity.row_targets.long()
    masses = torch.empty_like(affinity.col_weights)
    masses[targets.argsort(stable=True)] = affinity.col_weights
    return drafts.repeat_interleave(affinity.row_offsets.diff()), targets, masses


def sparse_rows(offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A matrix in compressed rows, without PyTorch's warning that this layout is young."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(offsets, columns, values, shape, check_invariants=False)


def _blocks(count: int, width: int) -> Iterator[slice]:
    size = max(1, _BLOCK_ENTRIES // width)
    return (slice(at, min(at + size, count)) for at in range(0, count, size))
