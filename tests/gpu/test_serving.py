"""An engine's step: drafts into slots in a CUDA graph, and vLLM's verification of them."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda import RecentTokens, StepRows, Verified, Vocabulary, draft, verify
from rdk_cuda.dynamic_tokens import KeptContexts
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import rejection_sample, sample_draft
from tests import generators

REQUESTS, SLOTS, SIZE, K = 3, 8, 40, 2


def test_a_step_of_rows_is_captured_and_replayed(cuda: torch.device) -> None:
    affinity = generators.affinity("mixed-1", SIZE).to(cuda)
    rows = StepRows(affinity, REQUESTS, K)
    draft_logits = generators.logits(REQUESTS, affinity.draft_size, 1).to(cuda)
    target = generators.logits(REQUESTS * (K + 1), SIZE, 2).to(cuda).unflatten(0, (REQUESTS, K + 1))
    with cuda:
        temperature, seeds = torch.ones(REQUESTS), torch.arange(REQUESTS)
        positions = torch.tensor([7, 8, 9])

    def step() -> Verified:
        own = {"seeds": seeds, "positions": positions, "rows": rows}
        drafts = [draft(draft_logits, affinity, temperature, **own)]
        for _ in range(K - 1):
            drafts.append(draft(draft_logits, affinity, after=drafts[-1]))
        return verify(target, drafts, affinity, temperature)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = step()
    seen = set()
    for change in (positions.neg_, seeds.neg_, lambda: temperature.fill_(0.3), target.neg_):
        change()
        graph.replay()
        replayed = [tensor.clone() for tensor in sampled]
        for actual, expected in zip(replayed, step(), strict=True):
            assert torch.equal(actual, expected)
        seen.add(str(replayed[:2]))
    assert len(seen) > 2


def test_drafting_is_captured_and_replayed_and_what_it_keeps_is_verified(
    cuda: torch.device,
) -> None:
    affinity = generators.affinity("mixed-1", SIZE).to(cuda)
    arena = DraftArena(affinity, SLOTS, K, dynamic_width=4)
    source = RecentTokens(Vocabulary(range(9), SIZE), width=4, window=8, device=cuda)
    draft_logits = generators.logits(REQUESTS, affinity.draft_size, 1).to(cuda)
    target_logits = generators.logits(REQUESTS * (K + 1), SIZE, 2).to(cuda)
    with cuda:
        idx_mapping = torch.tensor([5, 0, 3], dtype=torch.int32)
        temperature, seeds = torch.ones(SLOTS), torch.arange(SLOTS)
        newest, draft_step = torch.tensor([7, 8, 9]), torch.arange(K)
        pos = (newest[:, None] + torch.arange(K + 1)).flatten()
        inputs = torch.zeros(REQUESTS, K + 1, dtype=torch.int64)
        known = torch.arange(SLOTS * 16, dtype=torch.int32).remainder(SIZE).view(SLOTS, 16)
        lengths = torch.arange(SLOTS, dtype=torch.int32) + 4

    def drafts() -> None:
        for j in range(K):
            state = {"lengths": lengths, "slots": idx_mapping, "place_id": draft_step[j : j + 1]}
            contexts = KeptContexts(known, drafts=arena.rows.tokens, **state)
            inputs[:, j + 1] = sample_draft(
                *(draft_logits, newest + j, idx_mapping, temperature, seeds, draft_step[j], arena),
                dynamic_tokens=source(contexts),
                dynamic_logits=draft_logits[:, :4].contiguous(),
            )

    def verified() -> list[list[int]]:
        ends = range(0, (REQUESTS + 1) * (K + 1), K + 1)
        sampled, _ = rejection_sample(
            *(target_logits, inputs.flatten(), ends, pos, idx_mapping, [5, 0, 3]),
            *(temperature, seeds, K, arena),
        )
        return sampled.tolist()

    drafts()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drafts()
    seen = set()
    for first_seed in (0, 100, 200):
        seeds.copy_(torch.arange(first_seed, first_seed + SLOTS))
        graph.replay()
        replayed = inputs.clone(), verified()
        drafts()
        assert torch.equal(replayed[0], inputs)
        assert replayed[1] == verified()
        seen.add(str(replayed))
    assert len(seen) == 3


@pytest.mark.parametrize("requests", [1, 64, 256])
def test_what_steps_upload_is_theirs_while_the_device_is_busy(
    requests: int, cuda: torch.device
) -> None:
    """Memory that a copy still reads is not filled by the next step, and no step waits for it."""
    arena = DraftArena(generators.affinity("mixed-1", SIZE).to(cuda), requests, K)
    of = torch.Generator().manual_seed(requests)
    counts = torch.randint(K + 1, (20, requests), generator=of).numpy()
    slots = torch.stack([torch.randperm(requests, generator=of) for _ in counts]).numpy()
    arena.layout(counts[0], slots[0])  # the first pinned memory
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)  # a second
    busy = torch.cuda.Event()
    busy.record()
    layouts = [arena.layout(*own, own[0]) for own in zip(counts, slots, strict=True)]
    assert not busy.query()
    for layout, count, slot in zip(layouts, counts, slots, strict=True):
        assert layout.more[0].tolist() == count.tolist()
        rows = [[s * K + j for j in range(n)] for s, n in zip(slot, count, strict=True)]
        assert layout.rows.tolist() == [row for own in rows for row in own]
