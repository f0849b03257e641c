"""How the target's probabilities of two tokens go together, for `Affinity.covariance`.

The kernel of arXiv:2506.03206 is `softmax(Omega / tau)` of the covariance or the second moment of
the target's distributions.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..vocabulary import Vocabulary
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

    Tokens that a sample did not record (where m is less than V_t) count as 0.

    Args:
        temperature: of the target, one of those of the samples.
        entries: keep only this many entries of each row, the largest positive ones. The others
            count as 0, the floor of a sparse Omega. None keeps all that are not 0, for small
            vocabularies: their number grows with V_d V_t. `.to_dense()` then gives
            `Affinity.covariance` the negative ones too.
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
    size, count = vocabulary.target_size, len(samples)
    probs = _by_token(samples, temperature, size)
    mean = probs.sum(1).to_dense() / count
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        matrix = probs.to_sparse_csr()
    places, values = [], []
    for rows in vocabulary.kept.split(_BLOCK_ROWS):
        block = probs.index_select(0, rows).to_dense()
        moments = torch.sparse.mm(matrix, block.T.contiguous()).T / count
        if centered:
            moments = moments - mean[rows, None] * mean
        if entries is None:
            row, column = moments.nonzero().unbind(1)
        else:
            top, best = moments.topk(min(entries, size))
            row, rank = (top > 0).nonzero().unbind(1)
            column = best[row, rank]
        places.append(torch.stack([rows[row], column]))
        values.append(moments[row, column])
    return torch.sparse_coo_tensor(
        torch.cat(places, 1), torch.cat(values), (size, size), check_invariants=False, device="cpu"
    ).coalesce()


def _by_token(samples: Samples, temperature: float, size: int) -> Tensor:
    """The target's recorded probabilities, sparse `[V_t, n]`."""
    count, likeliest = samples.targets.shape
    sample = torch.arange(count, device="cpu").repeat_interleave(likeliest)
    return torch.sparse_coo_tensor(
        torch.stack([samples.targets.flatten().long(), sample]),
        samples.target_probs(temperature).flatten(),
        (size, count),
        check_invariants=False,
        device="cpu",
    ).coalesce()
