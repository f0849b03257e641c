"""The best of several pruned drafters on samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..drafter import FullHead, PrunedDrafter
from ..functional import redistribute
from .recording import Samples

Label = TypeVar("Label")

_BLOCK_ENTRIES = 1 << 25  # of q that are held at a time, 128 MB


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
