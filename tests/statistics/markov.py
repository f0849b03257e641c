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
from tests import generators
from tests.statistics.chi_square import histogram

ORDER = 2


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


StepKeys = Callable[[Tensor, Tensor], Tensor]
# Which drafts to keep, [B, K], from the drafted tokens and their stats.
Keep = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Loop:
    """Speculative decoding of many sequences, and the ways in which it can be done wrong."""

    models: Models
    drafts: int = 2
    feed_back_rejected: bool = False  # Offer the rejected drafts as dynamic tokens.
    step_keys: StepKeys = torch.ops.rdk.step_keys
    keep: Keep | None = None
    verify_temperature: float | None = None
    offer_logit: float = 2.0
    method: int = 0  # of verify
    top_k: int = 0  # of the target

    def texts(self, sequences: int, length: int) -> Tensor:
        """How often each text was decoded, in the order of `Models.exact`."""
        size, width = self.models.size, self.drafts
        text = torch.zeros(sequences, ORDER + length + width + 1, dtype=torch.int64)
        done = torch.zeros(sequences, dtype=torch.int64)
        offered = torch.full((sequences, width), -1, dtype=torch.int32)
        seeds = torch.arange(sequences)
        active = torch.arange(sequences)
        while active.numel():
            tokens, accepted, drafted = self.step(
                text[active], done[active], seeds[active], offered[active]
            )
            for j in range(width + 1):
                put = j <= accepted
                text[active[put], ORDER + done[active[put]] + j] = tokens[put, j]
            rejected = torch.arange(width) >= accepted[:, None]
            offered[active] = torch.where(rejected, drafted, -1).int()
            done[active] += accepted + 1
            active = active[done[active] < length]
        decoded = text[:, ORDER : ORDER + length]
        index = (decoded * size ** torch.arange(length - 1, -1, -1)).sum(1)
        return histogram(index, size**length)

    def step(
        self, text: Tensor, done: Tensor, seeds: Tensor, offered: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output tokens ``[B, K + 1]``, accepted drafts ``[B]`` and drafted tokens ``[B, K]``."""
        models, width, batch = self.models, self.drafts, seeds.numel()
        keys = self.step_keys(seeds, done)
        text, ones = text.clone(), torch.ones(batch)
        dynamic = offered if self.feed_back_rejected else None
        values = torch.full(offered.shape, self.offer_logit) if self.feed_back_rejected else None
        logits, stats, drafted = [], [], []
        for j in range(width):
            logits.append(models.drafter[models.context(text, ORDER + done + j)])
            tokens, row_stats = torch.ops.rdk.draft(
                logits[-1],
                ones * models.draft_temperature,
                keys,
                done + j,
                *models.affinity.by_draft,
                dynamic,
                values,
            )
            text[torch.arange(batch), ORDER + done + j] = tokens
            drafted.append(tokens)
            stats.append(row_stats)
        target = torch.stack(
            [models.target[models.context(text, ORDER + done + j)] for j in range(width + 1)], 1
        )
        tokens = torch.stack(drafted, 1)
        draft_stats = torch.stack(stats, 1)
        if self.keep is not None:
            kept = self.keep(tokens, draft_stats)
            tokens = torch.where(kept, tokens, -1)
        scale = models.draft_temperature
        if self.verify_temperature is not None:
            scale, draft_stats = self.verify_temperature, None
        output, accepted, _ = torch.ops.rdk.verify(
            target.flatten(0, 1),
            torch.stack(logits, 1).flatten(0, 1),
            None if draft_stats is None else draft_stats.flatten(0, 1),
            None,
            tokens.flatten(),
            torch.arange(batch + 1, dtype=torch.int32) * width,
            ones * models.target_temperature,
            ones * scale,
            keys,
            done,
            *models.affinity.by_target,
            width,
            None if dynamic is None else dynamic.repeat_interleave(width, 0),
            None if values is None else values.repeat_interleave(width, 0),
            *((torch.full((batch,), self.top_k, dtype=torch.int32),) if self.top_k else (None,)),
            method=self.method,
        )
        return output, accepted.long(), torch.stack(drafted, 1)
