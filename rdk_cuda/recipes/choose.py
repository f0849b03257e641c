"""The best of several pruned drafters on samples, and RDK tuned on them.

The kernel of RDK (arXiv:2506.03206) is `softmax(Omega / tau)`, here of the covariance of the
target's distributions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..affinity import Affinity
from ..affinity.entries import nonnegative
from ..affinity.samplers import first_order
from ..drafter import FullHead, PrunedDrafter
from ..functional import redistribute
from ..vocabulary import Vocabulary
from .recording import Samples

Label = TypeVar("Label")

KEEPS = tuple(sixteenths / 16 for sixteenths in range(17))
_BLOCK_ENTRIES = 1 << 25  # of q that are held at a time, 128 MB
_BLOCK_ROWS = 128  # of moments: few enough that [n, rows] stays in the cache at n = 2000
_MOST_DECADES = 10  # of tau; below, all rows but the rarest have long been one-hot


class TauAndKeep(NamedTuple):
    """Parameters of a tuned RDK sampler; at `keep` 1 it redistributes nothing."""

    tau: float
    keep: float


@dataclass(frozen=True, eq=False)
class Tuned(Generic[Label]):
    """The best of the candidates, and its mean `sum_x min(p(x), q(x))` over the samples."""

    label: Label
    drafter: PrunedDrafter
    acceptance: float


def tune(
    candidates: Iterable[tuple[Label, PrunedDrafter]],
    samples: Samples,
    full_head: FullHead,
    temperature: float,
) -> Tuned[Label]:
    """The candidate that the target accepts most often; on a tie, the first.

    Candidates are drafters with labels, which may be made one at a time.
    """
    best: Tuned[Label] | None = None
    for label, drafter in candidates:
        rates = sampled_acceptance(samples, drafter, full_head, temperature)
        rate = float(rates.double().mean())
        if best is None or rate > best.acceptance:
            best = Tuned(label, drafter, rate)
    if best is None:
        raise ValueError("tune: got no candidates; needs at least one to choose from")
    return best


def hurts(
    drafter: PrunedDrafter,
    other: PrunedDrafter,
    samples: Samples,
    full_head: FullHead,
    temperature: float,
) -> bool:
    """Whether the target accepts less of a drafter, by more than two standard errors.

    These are between documents, so a single one decides nothing. A drafter that makes no difference
    anywhere counts as hurting: it is not worth its cost.
    """
    expected, found = (
        sampled_acceptance(samples, one, full_head, temperature).double()
        for one in (other, drafter)
    )
    loss = expected - found
    if not bool(loss.any()):
        return True
    members, place = samples.documents.unique(return_inverse=True)
    count = len(members)
    if count < 2:
        return False
    mean = loss.mean()
    residuals = torch.zeros(count, dtype=loss.dtype, device="cpu").index_add_(0, place, loss - mean)
    error = residuals.square().sum().sqrt() / len(loss) * math.sqrt(count / (count - 1))
    return bool(mean > 2 * error)


@torch.no_grad()
def target_covariance(
    samples: Samples, vocabulary: Vocabulary, temperature: float, entries: int
) -> Tensor:
    """`E[p p^T] - E[p] E[p]^T`, the largest positive `entries` of the rows of kept tokens.

    Sparse `[V_t, V_t]` float32, coalesced. Tokens that a sample did not record count as 0.
    """
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
        top, best = (moments - mean[rows, None] * mean).topk(min(entries, size))
        row, rank = (top > 0).nonzero().unbind(1)
        places.append(torch.stack([rows[row], best[row, rank]]))
        values.append(top[row, rank])
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


def tuned_covariance(
    samples: Samples, full_head: FullHead, vocabulary: Vocabulary, omega: Tensor, temperature: float
) -> Tuned[TauAndKeep]:
    """Exact RDK (arXiv:2506.03206) with the tau and keep that the target accepts most often."""
    matrix = omega.coalesce()
    peaks = torch.zeros(vocabulary.target_size, dtype=matrix.dtype, device="cpu")
    peaks = peaks.scatter_reduce(0, matrix.indices()[0], matrix.values(), "amax")
    peaks = peaks[vocabulary.kept]

    def sampler(tau: float, keep: float) -> Affinity:
        return Affinity.covariance(vocabulary, omega, tau, keep=keep)

    return _tuned(samples, full_head, vocabulary, temperature, KEEPS, peaks, sampler)


def tuned_first_order(
    samples: Samples,
    full_head: FullHead,
    vocabulary: Vocabulary,
    mean_probs: Tensor,
    temperature: float,
    *,
    keeps: Sequence[float] = KEEPS,
) -> Tuned[TauAndKeep]:
    """First-order RDK with the best tau and keep; the paper keeps nothing: `keeps=(0.0,)`."""
    size = vocabulary.target_size
    mean = nonnegative("tuned_first_order: mean_probs", mean_probs, (size,))
    scales = mean[vocabulary.kept] / mean.sum() / size

    def sampler(tau: float, keep: float) -> Affinity:
        # Not the constructor, which warns of what the samples will rule out.
        return Affinity(**first_order(vocabulary, mean, tau, keep))

    return _tuned(samples, full_head, vocabulary, temperature, keeps, scales, sampler)


def _tuned(
    samples: Samples,
    full_head: FullHead,
    vocabulary: Vocabulary,
    temperature: float,
    keeps: Sequence[float],
    scales: Tensor,
    sampler: Callable[[float, float], Affinity],
) -> Tuned[TauAndKeep]:
    plain = PrunedDrafter.plain(full_head, vocabulary)
    target_probs = samples.target_probs(temperature)
    kept = sampled_draft_probs(samples, plain, full_head, temperature)

    def rated(exponent: float) -> tuple[float, float, float]:
        """Acceptance, exponent and keep; q is linear in keep."""
        drafter = replace(plain, affinity=sampler(10**exponent, 0.0))
        spread = sampled_draft_probs(samples, drafter, full_head, temperature)
        rates = [
            float(torch.minimum(target_probs, spread.lerp(kept, keep)).sum(1).double().mean())
            for keep in keeps
        ]
        best = max(range(len(keeps)), key=rates.__getitem__)
        return rates[best], exponent, keeps[best]

    positive = scales[scales > 0].double()
    if not positive.numel():
        raise ValueError(
            "tuned RDK: all similarities of kept tokens are 0; needs some, or "
            "Affinity.intersection, which redistributes nothing"
        )
    highest = math.ceil(math.log10(float(positive.max()))) + 1
    lowest = max(math.floor(math.log10(float(positive.min()))) - 1, highest - _MOST_DECADES)
    best = max((rated(float(e)) for e in range(highest, lowest - 1, -1)), key=lambda one: one[0])
    for step in (0.5, 0.25, 0.125):
        around = [best, rated(best[1] - step), rated(best[1] + step)]
        best = max(around, key=lambda one: one[0])
    rate, exponent, keep = best
    drafter = replace(plain, affinity=sampler(10**exponent, keep))
    return Tuned(TauAndKeep(10**exponent, keep), drafter, rate)


@torch.no_grad()
def sampled_draft_probs(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`q` at the recorded target tokens of each sample: `[n, m]` float32."""
    probs = torch.empty(samples.targets.shape, dtype=torch.float32, device="cpu")
    block = max(1, _BLOCK_ENTRIES // drafter.affinity.target_size)
    for rows in torch.arange(len(samples), device="cpu").split(block):
        part = samples.select(rows)
        columns = drafter.columns(full_head, part.hidden, part.contexts)
        q = redistribute(affinity=drafter.affinity, temperature=temperature, **columns)
        probs[rows] = q.gather(1, part.targets.long())
    return probs


def sampled_acceptance(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`sum_x min(p(x), q(x))` over the recorded target tokens of each sample: `[n]` float32."""
    q = sampled_draft_probs(samples, drafter, full_head, temperature)
    return torch.minimum(samples.target_probs(temperature), q).sum(1)
