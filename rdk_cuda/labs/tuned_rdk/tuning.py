"""RDK, the kernel `softmax(Omega / tau)`, tuned on samples of the target (arXiv:2506.03206)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...affinity import Affinity
from ...affinity.entries import nonnegative
from ...affinity.samplers import first_order
from ...drafter import FullHead, PrunedDrafter
from ...recipes.choose import Tuned, sampled_draft_probs
from ...recipes.recording import Samples
from ...recipes.stages.pruning import Method, Pruning
from ...vocabulary import Vocabulary

FIRST_ORDER, COVARIANCE = "first-order RDK", "RDK, covariance"

KEEPS = tuple(sixteenths / 16 for sixteenths in range(17))
ENTRIES = 128  # of a row of similarities, at most
_BLOCK_ROWS = 128  # of moments: few enough that [n, rows] stays in the cache at n = 2000
_MOST_DECADES = 10  # of tau; below, all rows but the rarest have long been one-hot


class TauAndKeep(NamedTuple):
    """Parameters of a tuned RDK sampler; at `keep` 1 it redistributes nothing."""

    tau: float
    keep: float


def tuned_rdk(pruning: Pruning, name: str, temperature: float) -> Method:
    """The method of one of these names for a pruning, at a recorded temperature."""
    if name not in (FIRST_ORDER, COVARIANCE):
        raise ValueError(f"tuned_rdk: got {name!r}; needs {FIRST_ORDER} or {COVARIANCE}")
    known = pruning.samples, pruning.full_head, pruning.vocabulary
    mean = pruning.mean_probs(temperature)
    if name == FIRST_ORDER:
        best = tuned_first_order(*known, mean, temperature, keeps=(0.0,))
        return Method(name, pruning.keep, best.drafter, f"tau {best.label.tau:.1e}")
    omega = target_covariance(known[0], pruning.vocabulary, temperature, ENTRIES)
    best = tuned_covariance(*known, omega, temperature)
    said = f"tau {best.label.tau:.1e}, keep {best.label.keep:g}"
    return Method(name, pruning.keep, best.drafter, said)


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
