"""Decoding loops over tiny models whose logits depend on the last two tokens.

Small enough that the exact probability of every text can be enumerated, and context-dependent, so
that a mistake at one position shows at the next ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.proof.statistics.chi_square import histogram

ORDER = 2
METHODS = [0, 1]  # by token, by block


@dataclass(frozen=True)
class Models:
    """A target and a drafter: logits for each context, ``[V_t ** 2, V]``."""

    target: Tensor
    drafter: Tensor
    affinity: Affinity
    target_temperature: float = 1.0
    draft_temperature: float = 1.0

    @classmethod
    def random(
        cls,
        affinity: Affinity,
        seed: int = 0,
        *,
        target_temperature: float = 1.0,
        draft_temperature: float = 1.0,
    ) -> Models:
        contexts = affinity.target_size**ORDER
        return cls(
            generators.logits(contexts, affinity.target_size, seed, scale=1.0),
            generators.logits(contexts, affinity.draft_size, seed + 1, scale=1.0),
            affinity,
            target_temperature,
            draft_temperature,
        )

    @property
    def size(self) -> int:
        return self.affinity.target_size

    def exact(self, length: int) -> Tensor:
        """The target's probability of each text of this length, the first token most significant.

        Every text follows the context (0, 0).
        """
        probs = torch.softmax(self.target.double() / self.target_temperature, 1)
        joint = []
        for text in itertools.product(range(self.size), repeat=length):
            chance, context = 1.0, 0
            for token in text:
                chance *= float(probs[context, token])
                context = (context * self.size + token) % self.size**ORDER
            joint.append(chance)
        return torch.tensor(joint, dtype=torch.float64)

    def context(self, text: Tensor, end: Tensor) -> Tensor:
        """The row of the tables for the tokens before ``end``, one for each sequence."""
        rows = torch.arange(text.shape[0])
        return text[rows, end - 2] * self.size + text[rows, end - 1]


def agreeing(agreement: float, size: int) -> Models:
    """A drafter that knows about the target as much as `agreement` says, 1 being all."""
    target, noise = (generators.logits(size**ORDER, size, seed, scale=1.2) for seed in (0, 9))
    drafter = agreement * target + (1 - agreement) * noise
    return Models(target, drafter, Affinity.intersection(Vocabulary.identity(size)))


StepKeys = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Loop:
    """Speculative decoding of many sequences, by the operators alone."""

    models: Models
    drafts: int = 2
    step_keys: StepKeys = torch.ops.rdk.step_keys
    method: int = 0  # of verify

    def texts(self, sequences: int, length: int) -> Tensor:
        """How often each text was decoded, in the order of `Models.exact`."""
        size, width = self.models.size, self.drafts
        text = torch.zeros(sequences, ORDER + length + width + 1, dtype=torch.int64)
        done = torch.zeros(sequences, dtype=torch.int64)
        seeds = torch.arange(sequences)
        active = torch.arange(sequences)
        while active.numel():
            tokens, accepted, _ = self.step(text[active], done[active], seeds[active])
            for j in range(width + 1):
                put = j <= accepted
                text[active[put], ORDER + done[active[put]] + j] = tokens[put, j]
            done[active] += accepted + 1
            active = active[done[active] < length]
        decoded = text[:, ORDER : ORDER + length]
        index = (decoded * size ** torch.arange(length - 1, -1, -1)).sum(1)
        return histogram(index, size**length)

    def step(self, text: Tensor, done: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output tokens ``[B, K + 1]``, accepted drafts ``[B]`` and drafted tokens ``[B, K]``."""
        models, width, batch = self.models, self.drafts, seeds.numel()
        keys = self.step_keys(seeds, done)
        text, ones = text.clone(), torch.ones(batch)
        logits, stats, drafted = [], [], []
        for j in range(width):
            logits.append(models.drafter[models.context(text, ORDER + done + j)])
            tokens, row_stats = torch.ops.rdk.draft(
                logits[-1],
                ones * models.draft_temperature,
                keys,
                done + j,
                *models.affinity.by_draft,
            )
            text[torch.arange(batch), ORDER + done + j] = tokens
            drafted.append(tokens)
            stats.append(row_stats)
        target = torch.stack(
            [models.target[models.context(text, ORDER + done + j)] for j in range(width + 1)], 1
        )
        tokens = torch.stack(drafted, 1)
        output, accepted, _ = torch.ops.rdk.verify(
            target.flatten(0, 1),
            torch.stack(logits, 1).flatten(0, 1),
            torch.stack(stats, 1).flatten(0, 1),
            None,
            tokens.flatten(),
            torch.arange(batch + 1, dtype=torch.int32) * width,
            ones * models.target_temperature,
            ones * models.draft_temperature,
            keys,
            done,
            *models.affinity.by_target,
            width,
            method=self.method,
        )
        return output, accepted.long(), tokens
