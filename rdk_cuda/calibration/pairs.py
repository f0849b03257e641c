"""Drafter and target side by side at the sampled positions, where affinities are compared.

    q(x) = given(x) + sum_i q'_i S[i, x] + sum_r s_r P[r, x],      s_r = sum_i q'_i U[i, r]

at the target's likeliest tokens x only (DESIGN section 2).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..affinity import Affinity
from .drafter import FullHead, PrunedDrafter
from .recording.samples import Samples

__all__ = ["DraftPairs", "acceptance", "draft_pairs", "redistributed", "sparse_rows"]

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
        torch.empty(shape, dtype=torch.float32, device="cpu"),
        samples.targets.long(),
        samples.target_probs(temperature),
        torch.zeros(samples.targets.shape, dtype=torch.float32, device="cpu"),
        drafter.affinity.target_size,
    )
    for rows in _blocks(len(samples), max(shape[1], pairs.target_size)):
        part = samples.select(torch.arange(rows.start, rows.stop, device="cpu"))
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
            given = torch.zeros(len(part), pairs.target_size, dtype=torch.float32, device="cpu")
            given.scatter_add_(1, tokens.masked_fill(unused, 0), shares[:, shape[1] :])
            pairs.given[rows] = given.gather(1, pairs.targets[rows])
    return pairs


def redistributed(pairs: DraftPairs, affinity: Affinity) -> Tensor:
    """`q` at the targets of the pairs, `[n, m]`."""
    dtype = pairs.draft_probs.dtype
    matrix, column_of = _by_target(affinity, dtype)
    prior, spread = affinity.prior.to(dtype), affinity.spread.to(dtype)
    result = torch.empty_like(pairs.target_probs)
    for part in _blocks(len(pairs), max(matrix.shape[0], prior.shape[1])):
        draft, targets = pairs.draft_probs[part], pairs.targets[part]
        by_column = torch.sparse.mm(matrix, draft.T.contiguous())
        q = by_column.gather(0, column_of[targets].T).T + pairs.given[part]
        for row, share in zip(prior, (draft @ spread).T, strict=True):
            q += share[:, None] * row[targets]
        result[part] = q
    return result


def _by_target(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The columns of S that have entries, as rows, then an empty one; and each target's row."""
    counts = affinity.col_offsets.diff().long()
    reached = counts.nonzero().flatten()
    column_of = torch.full(
        (affinity.target_size,), reached.numel(), dtype=torch.int64, device="cpu"
    )
    column_of[reached] = torch.arange(reached.numel(), device="cpu")
    offsets = torch.nn.functional.pad(counts[reached].cumsum(0), (1, 1))
    offsets[-1] = offsets[-2]
    shape = (reached.numel() + 1, affinity.draft_size)
    drafts, masses = affinity.col_drafts.long(), affinity.col_weights.to(dtype)
    return sparse_rows(offsets, drafts, masses, shape), column_of


def acceptance(p: Tensor, q: Tensor) -> float:
    """`mean_n sum_x min(p, q)` of `[n, m]` each."""
    return float(torch.minimum(p, q).sum(dtype=torch.float64) / max(1, len(p)))


def sparse_rows(offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A matrix in compressed rows, without PyTorch's warning that this layout is young."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            offsets, columns, values, shape, check_invariants=False, device="cpu"
        )


def _blocks(count: int, width: int) -> Iterator[slice]:
    size = max(1, _BLOCK_ENTRIES // width)
    return (slice(at, min(at + size, count)) for at in range(0, count, size))
