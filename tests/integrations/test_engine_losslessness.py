"""What comes out of every adapter has the target's distribution, whatever the slots and the batch.

Chi-square tests over 20,000 independent requests with fixed seeds; each would fail for a right
sampler with probability 1e-6. The negative control is what goes wrong with slots: the rows of
another request. Half of the requests have the opposite drafter of the other half, or it would not
show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.sglang import verify_chain
from rdk_cuda.integrations.vllm import rejection_sample, rejection_sample_v1
from tests import generators
from tests.statistics.chi_square import assert_caught, assert_fits

REQUESTS, SIZE, K = 20_000, 8, 2
TEMPERATURE = 0.8


@dataclass
class Engine:
    """Many requests, all with the same target distributions at their K + 1 positions."""

    arena: DraftArena
    target: Tensor  # [K + 1, V_t]
    drafted: Tensor  # [requests, K]
    slots: Tensor
    seeds: Tensor
    positions: Tensor  # of each request's newest token

    @classmethod
    def running(cls, kind: str) -> Engine:
        affinity = generators.affinity(kind, SIZE)
        arena = DraftArena(affinity, REQUESTS, K)
        slots = torch.randperm(REQUESTS, generator=generators.generator(3))
        seeds, positions = torch.arange(REQUESTS) * 7, torch.arange(REQUESTS) % 100
        drafter = generators.logits(1, affinity.draft_size, 2)
        opposite = 1 - 2 * (torch.arange(REQUESTS) % 2)
        tokens = [
            arena.draft(
                drafter * opposite[:, None],
                step,
                slots=slots,
                temperature=torch.full((REQUESTS,), TEMPERATURE),
                seeds=seeds,
                positions=positions + 1,
            )
            for step in range(K)
        ]
        target = generators.logits(K + 1, SIZE, 1)
        return cls(arena, target, torch.stack(tokens, 1), slots, seeds, positions)

    @property
    def inputs(self) -> Tensor:
        """The newest token, which means nothing here, then the drafts."""
        return torch.cat([torch.zeros(REQUESTS, 1, dtype=torch.int64), self.drafted], 1)

    @property
    def logits(self) -> Tensor:
        return self.target.repeat(REQUESTS, 1)

    @property
    def read(self) -> Tensor:
        return (self.positions[:, None] + torch.arange(K + 1)).flatten()

    @property
    def exact(self) -> Tensor:
        """Of the first two tokens: `[V_t, V_t]`."""
        p = torch.softmax(self.target.double() / TEMPERATURE, 1)
        return p[0][:, None] * p[1][None, :]


def vllm_v1(engine: Engine, slots: Tensor | None) -> Tensor:
    return rejection_sample_v1(
        engine.logits,
        engine.drafted.flatten().int(),
        (torch.arange(REQUESTS) + 1).int() * K,
        K,
        engine.read,
        torch.full((REQUESTS,), TEMPERATURE),
        engine.seeds,
        engine.arena,
        slots=slots,
    )


def vllm_v2(engine: Engine, slots: Tensor | None) -> Tensor:
    idx_mapping = engine.slots if slots is None else slots
    sampled, _ = rejection_sample(
        engine.logits / TEMPERATURE,
        engine.inputs.flatten().int(),
        torch.arange(REQUESTS + 1).int() * (K + 1),
        engine.read,
        idx_mapping,
        torch.full((REQUESTS,), TEMPERATURE),
        torch.empty_like(engine.seeds).scatter_(0, idx_mapping, engine.seeds),
        K,
        engine.arena,
        has_distribution=slots is not None,
    )
    return sampled


def sglang(engine: Engine, slots: Tensor | None) -> Tensor:
    verified = verify_chain(
        engine.logits,
        engine.inputs,
        torch.arange(REQUESTS * (K + 1)).view(REQUESTS, K + 1),
        engine.positions,
        torch.full((REQUESTS, 1), TEMPERATURE),
        torch.full((REQUESTS,), 1 << 30),
        engine.seeds,
        engine.arena,
        req_pool_indices=slots,
    )
    read = verified.predict[verified.accept_index.clamp(min=0).long()]
    return read.where(verified.accept_index >= 0, -1)


ADAPTERS = [vllm_v1, vllm_v2, sglang]
Adapter = Callable[[Engine, Tensor | None], Tensor]


def first_tokens(output: Tensor) -> Tensor:
    return torch.bincount(output[:, 0].long(), minlength=SIZE)


@pytest.mark.parametrize("kind", ["intersection", "mixed-1"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_first_token_is_the_targets(adapter: Adapter, kind: str) -> None:
    engine = Engine.running(kind)
    output = adapter(engine, engine.slots)
    assert_fits(first_tokens(output), engine.exact.sum(1))
    accepted = (output[:, 1] >= 0).double().mean()
    assert 0.1 < accepted < 0.9
    # The second token, where there is one, has the target's distribution whatever the first was.
    both = output[output[:, 1] >= 0][:, :2].long()
    counts = torch.bincount(both[:, 0] * SIZE + both[:, 1], minlength=SIZE * SIZE).view(SIZE, SIZE)
    first = counts.sum(1, keepdim=True) / counts.sum()
    assert_fits(counts, first * engine.exact.sum(0))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_rows_of_another_request_are_caught(adapter: Adapter) -> None:
    engine = Engine.running("intersection")
    assert_caught(first_tokens(adapter(engine, engine.slots.roll(1))), engine.exact.sum(1))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_drafts_without_a_distribution_are_lossless_too(adapter: Adapter) -> None:
    """Whatever they were drawn from: q is one-hot, and what is lost is only acceptance."""
    engine = Engine.running("intersection")
    output, with_rows = adapter(engine, None), adapter(engine, engine.slots)
    assert_fits(first_tokens(output), engine.exact.sum(1))
    assert (output[:, 1] >= 0).sum() < (with_rows[:, 1] >= 0).sum()
