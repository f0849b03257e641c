"""What a group of ranks does with `sum_shard` and `verify_shard`, in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import reference
from tests.generators import Batch

CHUNK = 1024
NOT_HERE = 2**63 - 1


@dataclass
class Shard:
    """A rank's columns: chunks from `first` up to `end`."""

    logits: Tensor
    first: int
    end: int

    def own(self, pairs: Tensor) -> Tensor:
        """Of pairs of chunks, ``[..., chunks, 2]``, without those of padding."""
        return pairs[..., : self.end - self.first, :]


@dataclass
class Calls:
    """The outputs of each rank's calls: its sums, and what verify_shard returns thrice."""

    sums: list[Tensor]
    first: list[tuple[Tensor, ...]]
    second: list[tuple[Tensor, ...]]
    third: list[tuple[Tensor, ...]]

    @property
    def drawn(self) -> Tensor:
        return least([found for _, _, found, _ in self.first])

    @property
    def tokens(self) -> Tensor:
        return torch.where(self.drawn[:, None] == NOT_HERE, self.third[0][0], self.second[0][0])


def least(found: list[Tensor]) -> Tensor:
    return torch.stack(found).amin(0)


def cut(batch: Batch, ranks: int) -> list[Shard]:
    """As even as whole chunks can be. A rank without any has only padding."""
    size, target = batch.affinity.target_size, batch.target_logits
    chunks = -(-size // CHUNK)
    bounds = [rank * chunks // ranks for rank in range(ranks + 1)]
    return [
        Shard(target[:, CHUNK * a : CHUNK * b], a, b) if a < b else Shard(target, chunks, chunks)
        for a, b in pairwise(bounds)
    ]


def sharded(batch: Batch, ranks: int, on: Any = None, trace: Any = None) -> Calls:
    """On the operators, or on the reference in float64."""
    if on is None:
        on = torch.ops.rdk
    exact = {"dtype": torch.float64} if on is reference else {}
    size, shards = batch.affinity.target_size, cut(batch, ranks)
    _, *drafter = batch.arguments()[:17]
    ids, offsets, at, longest = drafter[3], drafter[4], drafter[5], drafter[-1]
    dynamic = batch.dynamic_tokens, batch.dynamic_logits
    sums = [
        on.sum_shard(each.logits, ids, offsets, at, longest, each.first, size, **exact)
        for each in shards
    ]
    drafted = torch.stack([own[:, :, -1:] for own in sums]).amax(0)
    chunks = [each.own(own[:, :, :-1]) for each, own in zip(shards, sums, strict=True)]
    every = torch.cat([*chunks, drafted], 2).float()
    traced = exact if trace is None else exact | {"trace": trace}

    def call(*known: Tensor) -> list[tuple[Tensor, ...]]:
        verify = partial(on.verify_shard, **traced)
        return [
            verify(each.logits, every, *drafter, each.first, *dynamic, *known) for each in shards
        ]

    first = call()
    drawn = least([found for _, _, found, _ in first])
    second = call(drawn)
    residuals = [each.own(out[3]) for each, out in zip(shards, second, strict=True)]
    return Calls(sums, first, second, call(drawn, torch.cat(residuals, 1).float()))
