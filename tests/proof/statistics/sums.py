"""Block verification as Sun et al. wrote it (arXiv:2403.10444, algorithm 2): by sums, in float64.

Nothing here races: an independent check of `rdk::verify` by block, and two mistakes on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import reference
from tests import generators
from tests.proof.statistics.markov import ORDER, Loop


@dataclass
class BySums(Loop):
    """The loop with the paper's rule in place of `verify`.

    Attributes:
        one_coin: compare every prefix with the same coin: wrong.
        plain_residual: draw from max(p - q, 0) where the prefix's factor belongs: wrong.
    """

    one_coin: bool = False
    plain_residual: bool = False
    seed: int = 0

    def step(self, text: Tensor, done: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `Loop.step` returns, of the same drafts."""
        _, _, drafted = super().step(text, done, seeds)
        self.seed += 1
        p, q = self.distributions(text, done, drafted)
        factors = prefix_factors(p, q, drafted)
        masses = (factors[:, :, None] * p - q).clamp(min=0)
        sums = masses.sum(2)
        win = sums / (sums + 1 - factors)
        batch, places = factors.shape
        random = generators.generator(self.seed)
        coins = torch.rand(batch, places, generator=random, dtype=torch.float64)
        if self.one_coin:
            coins = coins[:, :1].expand(-1, places)
        wins = (coins < win) | (torch.arange(places) == 0)
        accepted = places - 1 - wins.flip(1).int().argmax(1)
        each = torch.arange(batch)
        residual = (p - q).clamp(min=0) if self.plain_residual else masses
        last = torch.multinomial(residual[each, accepted], 1, generator=random)[:, 0]
        output = torch.nn.functional.pad(drafted, (0, 1))
        output[each, accepted] = last
        return output, accepted, drafted

    def distributions(self, text: Tensor, done: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """P and q at every place of the draft, ``[B, K + 1, V]``; q is 0 behind the last."""
        models, batch = self.models, done.numel()
        columns = (*models.affinity.by_target, models.affinity.row_top)
        scale = torch.full((len(models.drafter),), models.draft_temperature)
        q_of = reference.redistribute(models.drafter, scale, *columns, dtype=torch.float64)
        p_of = torch.softmax(models.target.double() / models.target_temperature, 1)
        text = text.clone()
        contexts = []
        for j in range(self.drafts + 1):
            contexts.append(models.context(text, ORDER + done + j))
            if j < self.drafts:
                text[torch.arange(batch), ORDER + done + j] = drafted[:, j]
        context = torch.stack(contexts, 1)
        q = q_of[context]
        q[:, -1] = 0
        return p_of[context], q


def prefix_factors(p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
    """``c_0 ... c_K`` of each path, ``[B, K + 1]``."""
    index = drafted[:, :, None]
    ratios = (p[:, :-1].gather(2, index) / q[:, :-1].gather(2, index)).squeeze(2)
    factors = [torch.ones_like(ratios[:, 0])]
    for ratio in ratios.unbind(1):
        factors.append((factors[-1] * ratio).clamp(max=1))
    return torch.stack(factors, 1)


def token_factors(p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
    """The probability that token verification accepts each prefix of the path, ``[B, K + 1]``."""
    index = drafted[:, :, None]
    ratios = (p[:, :-1].gather(2, index) / q[:, :-1].gather(2, index)).squeeze(2)
    chances = ratios.clamp(max=1).cumprod(1)
    return torch.cat([torch.ones_like(chances[:, :1]), chances], 1)
