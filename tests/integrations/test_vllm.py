"""vLLM's layouts in, vLLM's layouts out; between them what `rdk_cuda.verify` decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.dynamic_tokens import KeptContexts, dynamic_columns
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import rejection_sample, sample_draft

from .engine import REQUESTS, SLOTS, K, Running, without_placeholders


def v2(
    running: Running,
    padding: int = 0,
    idle: int = 0,
    slots: Tensor | None = None,
    has_distribution: bool = True,
    **options: object,
) -> tuple[Tensor, Tensor]:
    """With `padding` rows after the last request's, and `idle` requests of one row each."""
    counts = [0, *(request.drafts + 1 for request in running.requests), *[1] * idle]
    positions = running.newest[:, None] + torch.arange(K + 1)
    inputs = torch.cat([torch.full((len(running.requests), 1), 5), running.drafted], 1)
    scale = running.temperature.where(running.temperature > 0, 1.0)[:, None, None]
    processed = running.packed(running.target_logits / scale, more=1)
    pad, rows = torch.nn.functional.pad, padding + idle
    own = pad(running.slots if slots is None else slots, (0, idle), value=-1)
    return rejection_sample(
        pad(processed, (0, 0, 0, rows), value=float("nan")),
        pad(running.packed(inputs, more=1).int(), (0, rows), value=3),
        torch.tensor(counts).cumsum(0),
        pad(running.packed(positions, more=1), (0, rows)),
        own,
        own if has_distribution else torch.full_like(own, -1),
        running.by_slot(running.temperature),
        running.by_slot(running.seeds),
        K,
        running.arena,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_adapters_decide_what_verify_decides(dynamic: bool) -> None:
    running = Running(dynamic=dynamic)
    expected = running.expected()
    # Some drafts are accepted and others rejected, or this would compare little.
    accepted = [running.directly(b)[1] for b in range(len(REQUESTS))]
    scheduled = [request.drafts - request.filled_up for request in REQUESTS]
    assert 0 < sum(accepted) < sum(scheduled)
    assert expected != running.expected(distribution=False)
    rolled = running.slots.roll(1)  # a control: other requests' slots
    assert without_placeholders(v2(running, slots=rolled)[0]) != expected
    by_block = without_placeholders(v2(running, method="block")[0])
    assert by_block == running.expected(method="block") != expected
    for padding in (0, 5):
        sampled, num_sampled = v2(running, padding)
        assert without_placeholders(sampled) == expected
        assert num_sampled.tolist() == [len(row) for row in expected]
        assert (sampled.dtype, num_sampled.dtype) == (torch.int64, torch.int32)


def test_what_cuts_a_request_off_reaches_verify() -> None:
    """Top-k of 1: each row's argmax, whatever was drafted. A request without it is as before."""
    running = Running()
    requests = len(REQUESTS)
    top_k = torch.full((requests,), running.target_logits.shape[-1], dtype=torch.int32)
    top_k[0] = 1
    limited = without_placeholders(v2(running, top_k=top_k, top_p=torch.ones(requests))[0])
    assert limited[1:] == running.expected()[1:]
    best = running.target_logits[0].argmax(-1).tolist()
    assert limited[0] == best[: len(limited[0])]


def test_drafts_without_a_distribution() -> None:
    """N-grams and suffixes: another result, as q is one-hot."""
    running = Running()
    expected = running.expected(distribution=False)
    assert without_placeholders(v2(running, has_distribution=False)[0]) == expected


@pytest.mark.parametrize("dynamic", [False, True])
def test_sample_draft_fills_the_arena_as_v2_calls_it(dynamic: bool) -> None:
    """Slots by `idx_mapping`, positions that are one less, and the draft's number on the device."""
    running = Running(dynamic=dynamic)
    arena = DraftArena(running.affinity, SLOTS, K, dynamic_width=4 if dynamic else 0)
    for step in range(K):
        tokens = sample_draft(
            running.draft_logits[:, step],
            running.newest + step,
            running.slots,
            running.by_slot(running.temperature),
            running.by_slot(running.seeds),
            torch.tensor(step),
            arena,
            **running.dynamic[step],
        )
        for b, request in enumerate(REQUESTS):
            if step < request.drafts - request.filled_up:
                assert tokens[b] == running.drafted[b, step]
    drafted = running.slots.long()
    for kept, expected in zip(arena.rows.memory, running.arena.rows.memory, strict=True):
        assert (kept is None) == (expected is None)
        if kept is not None and expected is not None:
            assert torch.equal(kept[drafted], expected[drafted])


def test_padding_requests_of_a_captured_batch_disturb_nobody() -> None:
    """Index -1, one row each, as `idx_mapping` is filled up for CUDA graphs."""
    running = Running()
    assert torch.equal(v2(running, idle=2)[0][:-2], v2(running)[0])
    before = running.arena.rows.logits.clone()
    sample_draft(
        running.draft_logits[:2, 0],
        torch.tensor([3, 4]),
        torch.tensor([-1, SLOTS]),
        running.by_slot(running.temperature),
        running.by_slot(running.seeds),
        torch.tensor(0),
        running.arena,
    )
    assert torch.equal(running.arena.rows.logits, before)


def test_a_target_row_without_distribution_gives_no_token() -> None:
    running = Running()
    running.target_logits[3] = float("nan")  # the request without drafts
    sampled, num_sampled = v2(running)
    assert sampled[3].tolist() == [-1] * (K + 1)
    assert without_placeholders(sampled[:3]) == running.expected()[:3]
    assert (num_sampled > 0).all()


class Drafting:
    """Dynamic tokens in V2: all that a draft reads lies in tensors that stay where they are."""

    def __init__(self, window: int) -> None:
        random = torch.Generator().manual_seed(window)
        vocabulary = Vocabulary(range(0, 40, 2), target_size=40)
        self.source = RecentTokens(vocabulary, width=4, window=window)
        self.arena = DraftArena(Affinity.intersection(vocabulary), 6, K, dynamic_width=4)
        self.head, self.hidden = torch.randn(2, 40, 40, generator=random)
        self.known = torch.randint(0, 40, (6, 12), generator=random).int()
        self.lengths = torch.tensor([0, 1, 4, 9, 12, 0], dtype=torch.int32)
        drafts = self.arena.rows.tokens
        self.drafts = drafts.copy_(torch.randint(0, 40, (6, K), generator=random))
        self.slots = torch.tensor([3, 1, 4, -1], dtype=torch.int32)
        self.step, self.seeds = torch.tensor(0), torch.arange(6)

    def contexts(self) -> KeptContexts:
        return KeptContexts(
            self.known,
            drafts=self.drafts,
            lengths=self.lengths,
            slots=self.slots,
            place_id=self.step.reshape(1),
        )

    def draft(self) -> tuple[Tensor, ...]:
        hidden = self.hidden[:4]
        full_head = (self.head, None)
        tokens, columns = dynamic_columns(self.source, full_head, self.contexts(), hidden)
        logits, positions = hidden @ self.head[::2].T, self.lengths[self.slots.clamp(min=0)].long()
        drawn = sample_draft(
            *(logits, positions + self.step, self.slots, torch.ones(6), self.seeds, self.step),
            self.arena,
            dynamic_tokens=tokens,
            dynamic_logits=columns,
        )
        rows = self.arena.rows
        assert rows.dynamic_tokens is not None
        return drawn, rows.dynamic_tokens.clone(), rows.logits.clone()


@pytest.mark.parametrize("window", [1, 5, 20])
def test_v2_contexts_are_the_last_tokens_with_those_drafted_so_far(window: int) -> None:
    drafting = Drafting(window)
    for step in range(K):
        drafting.step.fill_(step)
        slots = drafting.slots.tolist()[:3]
        lengths = drafting.lengths.tolist()
        whole = [
            drafting.known[slot, : lengths[slot]].tolist() + drafting.drafts[slot, :step].tolist()
            for slot in slots
        ]
        named = drafting.source(drafting.contexts())
        assert torch.equal(named[:3], drafting.source(whole))
        assert (named[3] == -1).all()  # padding


def test_v2_drafts_with_dynamic_tokens_can_be_recorded_and_replayed() -> None:
    """`make_fx` keeps the operators and drops our Python, as a CUDA graph does."""
    drafting, seen = Drafting(window=8), set()
    recorded = make_fx(lambda: drafting.draft())()
    for step in range(K):
        drafting.step.fill_(step)
        drafting.known.add_(1).remainder_(40)
        drafting.drafts.add_(2).remainder_(40)
        drafting.lengths[:5].add_(1).clamp_(max=12)
        drafting.hidden.neg_()
        drafting.seeds.add_(1)
        replayed, expected = recorded(), drafting.draft()
        assert all(map(torch.equal, replayed, expected))
        seen.add(str(expected))
    assert len(seen) == K  # a control: what has changed is read
