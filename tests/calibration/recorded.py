"""Random samples of a small vocabulary, in which drafter and target go together."""

from __future__ import annotations

import torch

from rdk_cuda.calibration.recording.samples import Samples
from rdk_cuda.vocabulary import Vocabulary

V_T, D, TEMPERATURES = 12, 4, (1.0, 0.6)


def full_head(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(V_T, D, generator=random), torch.randn(V_T, generator=random)


def vocabulary(kept: int = 6, seed: int = 0) -> Vocabulary:
    random = torch.Generator().manual_seed(seed + 100)
    return Vocabulary(torch.randperm(V_T, generator=random)[:kept], V_T)


def samples(count: int = 30, width: int = V_T, seed: int = 0) -> Samples:
    """The target's logits are the drafter's own and noise, so that they go together."""
    random = torch.Generator().manual_seed(seed + 200)
    hidden = torch.randn(count, D, generator=random)
    weight, bias = full_head(seed)
    logits = hidden @ weight.T + bias + torch.randn(count, V_T, generator=random)
    values, targets = logits.sort(descending=True)
    return Samples(
        hidden,
        targets[:, :width].int(),
        values[:, :width],
        TEMPERATURES,
        torch.stack([(logits / temperature).logsumexp(1) for temperature in TEMPERATURES], 1),
        torch.randint(-1, V_T, (count, 5), generator=random, dtype=torch.int32),
        torch.zeros(count, dtype=torch.int64),
    )


def target_probs(samples: Samples, temperature: float) -> torch.Tensor:
    """`[n, V_t]` float64, 0 where nothing was recorded."""
    probs = torch.zeros(len(samples), V_T, dtype=torch.float64)
    return probs.scatter_(1, samples.targets.long(), samples.target_probs(temperature).double())
