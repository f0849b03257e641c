"""A step of either model runner without an engine: our functions, as vLLM calls them.

On any device, and on one that is only said to be there (`pretended.py`). Of vLLM no more is needed
than its names, which `profiling.peers.carried` gives where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, SuccessorTable, Vocabulary
from rdk_cuda.dynamic_tokens import CombinedTokens
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm.metrics import Counters

WINDOW, LONGEST, READ = 256, 1024, 500
MODEL = SimpleNamespace(seed=0, logprobs_mode="raw_logprobs")
PLAIN = SimpleNamespace(additional_config={}, model_config=MODEL)


class Of(NamedTuple):
    """What a step is of: B requests with K drafts, V_t tokens of which `each`th is kept."""

    device: torch.device
    put: Callable[[Tensor], Tensor]
    requests: int = 32
    drafts: int = 4
    tokens: int = 512
    each: int = 4
    states: int = 16
    width: int = 64  # dynamic tokens; 0 for none
    dtype: torch.dtype = torch.float32

    def numbers(self, *shape: int, most: int = 0, seed: int = 0) -> Tensor:
        """Integers below `most`, or normal numbers."""
        generator = torch.Generator().manual_seed(seed)
        if most:
            return self.put(torch.randint(0, most, shape, generator=generator).int())
        return self.put(torch.randn(*shape, generator=generator).to(self.dtype))

    def verified(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Rows of logits, of which 64 are drawn, and packed drafts."""
        count, drafts = self.requests * (self.drafts + 1), self.requests * self.drafts
        rows = self.numbers(min(count, 64), self.tokens, seed=seed).repeat(-(-count // 64), 1)
        return rows[:count], self.numbers(drafts, most=self.tokens)

    def hidden(self, seed: int = 0) -> list[Tensor]:
        """The drafter's states, for each draft."""
        shape = self.requests, self.states
        return [self.numbers(*shape, seed=seed + place) for place in range(self.drafts)]


def drafting(kind: type[Any], of: Of, **others: Any) -> Any:
    """A proposer or a speculator with a small head and, if asked for, dynamic tokens."""
    size, device = of.tokens, of.device
    vocabulary = Vocabulary(range(0, size, of.each), target_size=size)
    following = torch.arange(size * 8).mul(5).remainder(size).int()
    offsets = torch.arange(size + 1, dtype=torch.int32) * 8
    own = type(kind.__name__, (kind,), {})()
    vars(own).update({"_scale": (None, 1.0), "vllm_config": PLAIN, **others})
    source = None
    if of.width:
        table = SuccessorTable(offsets, following, width=of.width).to(device)
        recent = RecentTokens(vocabulary, 8, WINDOW, device=device)
        source = CombinedTokens([recent, table], vocabulary, of.width, device=device)
    rows = torch.randn(size, of.states, generator=torch.Generator().manual_seed(0)).to(of.dtype)
    own.window, own._full_head = WINDOW, (of.put(rows), None)
    weight = of.put(rows[:: of.each].contiguous())
    own.drafter = SimpleNamespace(weight=weight, bias=None, dynamic_tokens=source)
    own._columns = weight.t()
    affinity = Affinity.intersection(vocabulary).to(device)
    own.arena = DraftArena(affinity, of.requests, of.drafts, dtype=of.dtype, dynamic_width=of.width)
    own.counters = Counters(vocabulary, device)
    own.counters.active = True
    return own


class StepV1:
    """Requests that have read some tokens, verify K drafts each, and draft."""

    def __init__(self, of: Of) -> None:
        from rdk_cuda.integrations.vllm.drafting import Proposer
        from rdk_cuda.integrations.vllm.requests import Requests
        from rdk_cuda.integrations.vllm.verification import TokenSampler

        self.of, batch = of, of.requests
        names, tokens = [str(b) for b in range(batch)], np.random.default_rng(0)
        self.sampling = SimpleNamespace(
            temperature=of.put(torch.full((batch,), 0.8)),
            spec_token_ids=[[7] * of.drafts] * batch,
            no_penalties=True,
            **dict.fromkeys(("all_greedy", "allowed_token_ids_mask", "bad_words_token_ids")),
            **dict.fromkeys(("top_k", "top_p", "max_num_logprobs", "logprob_token_ids")),
        )
        read = SimpleNamespace(
            req_ids=names,
            token_ids_cpu=tokens.integers(0, of.tokens, (batch, LONGEST), dtype=np.int32),
            num_tokens_no_spec=np.full(batch, READ, dtype=np.int32),
            num_computed_tokens_cpu=np.full(batch, READ - 1, dtype=np.int32),
            sampling_metadata=self.sampling,
            generators={},
        )
        asked = SimpleNamespace(**dict.fromkeys(("seed", "structured_outputs", "logit_bias")))
        asked.min_p, asked.min_tokens = 0.0, 0
        runner = SimpleNamespace(
            input_batch=read,
            requests={name: SimpleNamespace(sampling_params=asked) for name in names},
            vllm_config=PLAIN,
            max_model_len=LONGEST,
        )
        self.requests = Requests(runner, 10**6, 0)
        self.proposer = drafting(Proposer, of, _requests=self.requests)
        self.sampler = TokenSampler(self.requests, self.proposer, "token")

    def verify(self, logits: Tensor, drafts: Tensor) -> Tensor:
        each = self.of.drafts
        self.requests.begin_step(dict.fromkeys(self.requests.ids, each + 1), has_grammar=False)
        given = {"num_draft_tokens": [each] * self.of.requests, "draft_token_ids": drafts}
        self.sampler.sample(logits, SimpleNamespace(**given))
        return self.requests._decided[0]

    def draft(self, hidden: Tensor, place: int) -> Tensor:
        drawn: Tensor = self.proposer._sample_draft_tokens(hidden, self.sampling)[0]
        return drawn


class StepV2:
    """The same for model runner V2, whose state is on the device."""

    def __init__(self, of: Of) -> None:
        from rdk_cuda.integrations.vllm.drafting_v2 import Speculator
        from rdk_cuda.integrations.vllm.verification_v2 import TokenSampler

        self.of, batch, rows = of, of.requests, of.requests * (of.drafts + 1)
        known = of.numbers(batch, LONGEST, most=of.tokens), of.put(torch.full((batch,), READ).int())
        names = "all_token_ids", "total_len"
        states = {n: SimpleNamespace(gpu=own) for n, own in zip(names, known, strict=True)}
        self.speculator = drafting(
            Speculator,
            of,
            _request_states=SimpleNamespace(**states),
            draft_tokens=of.put(torch.zeros(batch, of.drafts, dtype=torch.int64)),
        )
        self.temperature = of.put(torch.full((batch,), 0.8))
        self.seeds = of.put(torch.arange(batch))
        own = {"temperature": self.temperature, "seeds": self.seeds}
        of_slots = {name: SimpleNamespace(gpu=value) for name, value in own.items()}
        settings = SimpleNamespace(sampling_states=SimpleNamespace(**of_slots))
        self.sampler = TokenSampler(settings, self.speculator, "token")
        slots = torch.arange(batch).flip(0)
        self.slots, self.slots_np = of.put(slots), slots.numpy()
        self.positions = of.put(torch.full((batch,), READ))
        self.inputs = of.numbers(rows, most=of.tokens)
        self.rows, self.place = of.put(torch.arange(rows)), torch.tensor(0)
        self.draft_step = of.put(self.place)  # one tensor, which vLLM fills anew

    def verify(self, logits: Tensor, drafts: Tensor) -> Tensor:
        """Decide what the inputs are in the place of `drafts`."""
        each = self.of.drafts + 1
        ends = range(0, self.of.requests * each + 1, each)
        rows = logits, self.inputs, ends, self.rows, self.slots, self.slots_np
        return self.sampler.decide(rows, None, None)[0]

    def draft(self, hidden: Tensor, place: int) -> Tensor:
        self.draft_step.fill_(place)
        given = hidden, self.positions, self.slots, self.temperature, self.seeds
        drawn: Tensor = self.speculator.sample_draft(*given, self.draft_step, None)
        return drawn
