"""Random samples and pairs of small vocabularies, with something in them to be learned."""

from __future__ import annotations

import torch

from rdk_cuda.affinity import Affinity
from rdk_cuda.calibration import DraftPairs
from rdk_cuda.calibration.samples import Samples
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


def random_pairs(
    seed: int, count: int = 12, target_size: int = 9, kept: int = 5, width: int | None = None
) -> tuple[DraftPairs, Affinity]:
    """Pairs in float64 whose drafter and target know nothing of each other, and no rows yet."""
    random = torch.Generator().manual_seed(seed)
    draft_ids = torch.randperm(target_size, generator=random)[:kept]
    q = (2 * torch.randn(count, kept, generator=random, dtype=torch.float64)).softmax(1)
    p = (2 * torch.randn(count, target_size, generator=random, dtype=torch.float64)).softmax(1)
    probs, targets = (part[:, :width] for part in p.sort(descending=True))
    pairs = DraftPairs(q, targets, probs, torch.zeros_like(probs), target_size)
    return pairs, Affinity.intersection(Vocabulary(draft_ids, target_size))


def dense_target(pairs: DraftPairs) -> torch.Tensor:
    """`[n, V_t]`, p."""
    probs = pairs.target_probs.new_zeros(len(pairs), pairs.target_size)
    return probs.scatter_(1, pairs.targets, pairs.target_probs)
