"""A step of either model runner waits for nothing, uploads from pinned memory, and calls little.

With our functions as vLLM calls them, on tensors that are said to be on a GPU (`pretended.py`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, SuccessorTable, Vocabulary
from rdk_cuda.dynamic_tokens import CombinedTokens
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm.metrics import Counters

from .interpreter import V2
from .pretended import GPU, OnGPU, Pretended, WaitsForDeviceError

B, K, SIZE, WIDTH, WINDOW, LONGEST = 32, 4, 512, 64, 256, 1024
MODEL = SimpleNamespace(seed=0, logprobs_mode="raw_logprobs")
PLAIN = SimpleNamespace(additional_config={}, model_config=MODEL)
# All that is called, views too. With dynamic tokens it was once V1 140, 104, 90; V2 128, 113.
MOST = {  # in a verification, in a step's first draft, and in each one after that
    (False, False): (15, 7, 4),
    (False, True): (19, 11, 6),
    (True, False): (16, 10, 10),
    (True, True): (20, 12, 12),
}


def drafting(kind: type[Any], dynamic: bool, **of: Any) -> Any:
    """A proposer or a speculator with a small head and, if asked for, dynamic tokens."""
    vocabulary = Vocabulary(range(0, SIZE, 4), target_size=SIZE)
    following = torch.arange(SIZE * 8).mul(5).remainder(SIZE).int()
    table = SuccessorTable(torch.arange(SIZE + 1, dtype=torch.int32) * 8, following, width=WIDTH)
    rows = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(0))
    own = type(kind.__name__, (kind,), {})()
    others = {"_scale": (None, 1.0), "vllm_config": PLAIN, **of}
    vars(own).update(others)
    with Pretended(strict=False):
        recent = RecentTokens(vocabulary, 8, WINDOW, device=GPU)
        sources = [recent, table.to(GPU)]
        own.window, own._full_head = WINDOW, (OnGPU(rows), None)
        own.drafter = SimpleNamespace(
            weight=OnGPU(rows[::4].contiguous()),
            bias=None,
            dynamic_tokens=CombinedTokens(sources, vocabulary, WIDTH, device=GPU)
            if dynamic
            else None,
        )
        own._columns = own.drafter.weight.t()
        affinity = Affinity.intersection(vocabulary).to(GPU)
        own.arena = DraftArena(affinity, B, K, dynamic_width=WIDTH if dynamic else 0)
        own.counters = Counters(vocabulary, GPU)
    own.counters.active = True
    return own


def on_gpu(*shape: int, most: int = 0, seed: int = 0) -> Tensor:
    """Integers below `most`, or normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    if most:
        return OnGPU(torch.randint(0, most, shape, generator=generator).int())
    return OnGPU(torch.randn(*shape, generator=generator))


class StepV1:
    """Requests that have read some tokens, verify K drafts each, and draft."""

    def __init__(self, dynamic: bool) -> None:
        from rdk_cuda.integrations.vllm.drafting import Proposer
        from rdk_cuda.integrations.vllm.requests import Requests
        from rdk_cuda.integrations.vllm.verification import TokenSampler

        names, of = [str(b) for b in range(B)], np.random.default_rng(0)
        self.sampling = SimpleNamespace(
            temperature=OnGPU(torch.full((B,), 0.8)),
            spec_token_ids=[[7] * K] * B,
            no_penalties=True,
            **dict.fromkeys(("all_greedy", "allowed_token_ids_mask", "bad_words_token_ids")),
            **dict.fromkeys(("top_k", "top_p", "max_num_logprobs", "logprob_token_ids")),
        )
        batch = SimpleNamespace(
            req_ids=names,
            token_ids_cpu=of.integers(0, SIZE, (B, LONGEST), dtype=np.int32),
            num_tokens_no_spec=np.full(B, 500, dtype=np.int32),
            num_computed_tokens_cpu=np.full(B, 499, dtype=np.int32),
            sampling_metadata=self.sampling,
            generators={},
        )
        asked = SimpleNamespace(**dict.fromkeys(("seed", "structured_outputs", "logit_bias")))
        asked.min_p, asked.min_tokens = 0.0, 0
        runner = SimpleNamespace(
            input_batch=batch,
            requests={name: SimpleNamespace(sampling_params=asked) for name in names},
            vllm_config=PLAIN,
            max_model_len=LONGEST,
        )
        self.requests = Requests(runner, 10**6, 0)
        self.proposer = drafting(Proposer, dynamic, _requests=self.requests)
        self.sampler = TokenSampler(self.requests, self.proposer, "token")

    def verify(self, logits: Tensor, drafts: Tensor) -> None:
        self.requests.begin_step(dict.fromkeys(self.requests.ids, K + 1), has_grammar=False)
        given = {"num_draft_tokens": [K] * B, "draft_token_ids": drafts}
        self.sampler.sample(logits, SimpleNamespace(**given))

    def draft(self, hidden: Tensor, step: int) -> Tensor:
        drawn: Tensor = self.proposer._sample_draft_tokens(hidden, self.sampling)[0]
        return drawn


class StepV2:
    """The same for model runner V2, whose state is on the device."""

    def __init__(self, dynamic: bool) -> None:
        from rdk_cuda.integrations.vllm.drafting_v2 import Speculator
        from rdk_cuda.integrations.vllm.verification_v2 import TokenSampler

        known = on_gpu(B, LONGEST, most=SIZE), OnGPU(torch.full((B,), 500).int())
        names = "all_token_ids", "total_len"
        states = {n: SimpleNamespace(gpu=of) for n, of in zip(names, known, strict=True)}
        self.speculator = drafting(
            Speculator,
            dynamic,
            _request_states=SimpleNamespace(**states),
            draft_tokens=OnGPU(torch.zeros(B, K, dtype=torch.int64)),
        )
        self.temperature, self.seeds = OnGPU(torch.full((B,), 0.8)), OnGPU(torch.arange(B))
        own = {"temperature": self.temperature, "seeds": self.seeds}
        own = {name: SimpleNamespace(gpu=value) for name, value in own.items()}
        states = SimpleNamespace(sampling_states=SimpleNamespace(**own))
        self.sampler = TokenSampler(states, self.speculator, "token")
        slots = torch.arange(B).flip(0)
        self.slots, self.slots_np = OnGPU(slots), slots.numpy()
        self.positions = OnGPU(torch.full((B,), 500))
        self.inputs = on_gpu(B * (K + 1), most=SIZE)
        self.rows, self.place = OnGPU(torch.arange(B * (K + 1))), torch.tensor(0)
        self.draft_step = OnGPU(self.place)  # one tensor, which vLLM fills anew

    def verify(self, logits: Tensor, drafts: Tensor) -> None:
        ends = range(0, B * (K + 1) + 1, K + 1)
        given = logits, self.inputs, ends, self.rows, self.slots, self.slots_np, None, None
        self.sampler.decide(*given)

    def draft(self, hidden: Tensor, step: int) -> Tensor:
        self.place.fill_(step)
        given = hidden, self.positions, self.slots, self.temperature, self.seeds
        drawn: Tensor = self.speculator.sample_draft(*given, self.draft_step, None)
        return drawn


def called(step: Any) -> tuple[list[int], list[Tensor]]:
    """How many calls a verification and each draft make, in the second of two steps."""
    with Pretended() as seen:
        for seed in (0, 1):
            logits, drafts = on_gpu(B * (K + 1), SIZE, seed=seed), on_gpu(B * K, most=SIZE)
            counts, drawn = [], []
            seen.names.clear()
            step.verify(logits, drafts)
            counts.append(len(seen.names))
            for place in range(K):
                hidden = on_gpu(B, 16, seed=seed + place)
                seen.names.clear()
                drawn.append(step.draft(hidden, place))
                counts.append(len(seen.names))
    return counts, drawn


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_waits_for_nothing_and_calls_little(dynamic: bool) -> None:
    step = (StepV2 if V2 else StepV1)(dynamic)
    (verified, first, *others), drawn = called(step)
    most = MOST[V2, dynamic]
    assert verified <= most[0]
    assert first <= most[1]
    assert max(others) <= most[2]
    # A control: the tokens are real ones, not a stand-in's.
    assert all(len(own.values.unique()) > 5 for own in drawn)  # type: ignore[attr-defined]


def test_who_waits_or_uploads_from_other_memory_is_caught() -> None:
    own, host = on_gpu(4), torch.ones(4)
    with Pretended() as seen:
        for wait, said in (
            (lambda: int(own[0]), "_local_scalar_dense.default waits"),
            (lambda: own[own > 0], "index.Tensor waits"),
            (lambda: torch.tensor([1, 2], device=GPU), r"uploads \[2\] from pageable memory"),
            (lambda: host.to(GPU, non_blocking=True), r"uploads \[4\] from pageable memory"),
            (lambda: own.copy_(host), r"uploads \[4\] from pageable memory"),
            (lambda: host.pin_memory().to(GPU), r"_to_copy.default of \[4\] blocks"),
            (lambda: own.to("cpu"), r"_to_copy.default of \[4\] blocks"),
        ):
            with pytest.raises(WaitsForDeviceError, match=said):
                wait()
        assert int(host[0]) == 1
        moved = host.pin_memory().to(GPU, non_blocking=True)
        assert moved.device == GPU
        assert seen.names


@pytest.mark.skipif(not V2, reason="in V1 a block drafter's drafts are drawn like others")
def test_a_block_drafter_s_drafts_are_drawn_and_kept_like_others() -> None:
    """As in DFlash, whose drafts come at once, request by request."""
    step, other = StepV2(dynamic=True), StepV2(dynamic=True)
    with Pretended():
        hidden = [on_gpu(B, 16, seed=place) for place in range(K)]
        expected = torch.stack([step.draft(own, place) for place, own in enumerate(hidden)], 1)
        places = OnGPU(torch.arange(K, dtype=torch.int32).repeat(B))
        each = [of.repeat_interleave(K) for of in (other.positions, other.slots)]
        given = torch.stack(hidden, 1).flatten(0, 1), *each, other.temperature, other.seeds, places
        drawn = other.speculator.sample_draft(*given, None)
    assert torch.equal(drawn.values, expected.values.flatten())  # type: ignore[attr-defined]
    kept = [own.speculator.arena.rows.logits.values for own in (step, other)]
    assert torch.equal(*kept)
