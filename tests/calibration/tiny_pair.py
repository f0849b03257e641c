"""A tiny target and drafter, and samples of both, for tests of calibration."""

from __future__ import annotations

import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.drafter import FullHead
from rdk_cuda.recipes.recording import Samples

V_T, V_HOT, D, K = 40, 12, 6, 4
TEMPERATURES = (1.0, 0.7)


def vocabulary() -> Vocabulary:
    """Twelve kept tokens, not in order."""
    order = torch.randperm(V_T, generator=torch.Generator().manual_seed(11))
    return Vocabulary(order[:V_HOT], V_T)


def clusters(kept: Vocabulary) -> Tensor:
    """The pruned tokens in turn."""
    result = torch.full((V_T,), -1)
    result[kept.pruned] = torch.arange(kept.pruned.numel()) % K
    return result


def full_head() -> FullHead:
    """The drafter's."""
    generator = torch.Generator().manual_seed(12)
    weight = torch.randn(V_T, D, generator=generator)
    return weight, 0.5 * torch.randn(V_T, generator=generator)


def samples(
    count: int = 90,
    *,
    noise: float = 0.7,
    recorded: int | None = None,
    documents: int = 9,
    seed: int = 13,
) -> Samples:
    """Targets whose logits are the full drafter's, up to noise."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, D, generator=generator)
    weight, bias = full_head()
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return samples_of(
        hidden,
        logits + noise * torch.randn(logits.shape, generator=generator),
        torch.randint(V_T, (count, 8), generator=generator).int(),
        torch.arange(count) * documents // count,
        recorded,
    )


def samples_of(
    hidden: Tensor,
    logits: Tensor,
    contexts: Tensor,
    documents: Tensor,
    recorded: int | None = None,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> Samples:
    """Samples of a target with these logits `[n, V_t]`."""
    values, targets = logits.sort(dim=1, descending=True)
    values, targets = values[:, :recorded], targets[:, :recorded].int()
    normalizers = torch.stack([(logits / t).logsumexp(1) for t in temperatures], 1)
    return Samples(hidden, targets, values, temperatures, normalizers, contexts, documents)


def target_probs(samples: Samples, temperature: float) -> Tensor:
    """`[n, V_t]` float64, 0 where nothing was recorded."""
    probs = torch.zeros(len(samples), V_T, dtype=torch.float64)
    return probs.scatter_(1, samples.targets.long(), samples.target_probs(temperature).double())


def mean_probs(samples: Samples, temperature: float = 1.0) -> Tensor:
    """Those of samples in which everything is recorded: `[V_t]` float64."""
    return target_probs(samples, temperature).mean(0)
