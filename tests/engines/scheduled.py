"""Requests as vLLM's scheduler may hand them over, of each kind, with each parameter, as tables."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

import rdk_cuda
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm.metrics import Counters
from tests import generators

SIZE, K = 40, 3
FORBIDDEN = list(range(0, SIZE, 3))  # by every grammar
# Whether it drafted in the last step, how many of those drafts are left, and how many -1 follow.
KINDS = {
    "goes on": (True, K, 0),
    "has room for one draft": (True, 1, 0),
    "reads its prompt": (False, 0, 0),
    "is new and filled up": (False, 0, K),
    "was preempted": (True, 0, 0),
    "was preempted and is filled up": (True, 0, K),
    "had drafts that were forbidden": (True, 1, K - 1),
}
PREEMPTED = [kind for kind in KINDS if "preempted" in kind]
GRAMMAR: dict[str, Any] = {"structured_outputs": StructuredOutputsParams(choice=["a"])}
PARAMETERS: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7, "repetition_penalty": 1.3},
    {"logit_bias": {3: 4.0, 5: -4.0}, "logprobs": 3},
    {"allowed_token_ids": list(range(30))},
    {"min_tokens": 9, "stop_token_ids": [1, 2, 4, 8, 16], "presence_penalty": 0.5},
    {"min_p": 0.1, "logprobs": 2},
    {"top_k": 5, "top_p": 0.9},
    {"_bad_words_token_ids": [[3], *([token, 6] for token in range(0, SIZE, 4))]},
    GRAMMAR,
    GRAMMAR | {"presence_penalty": 0.3},
]


class Step:
    """A request of each kind; all pairs of kinds and parameters in `len(PARAMETERS)` steps.

    Attributes:
        cases: `drafts` are what vLLM schedules, those in `drawn` have been drafted in the `slot`.
        logits: `[requests, K + 1, SIZE]`, the target's. drafts: `[requests]` each.
    """

    def __init__(self, seed: int) -> None:
        random, count, affinity = Random(seed), len(KINDS), generators.affinity("mixed-1", SIZE)
        drafter = generators.logits(count * K, affinity.draft_size, seed).view(count, K, -1)
        probs = rdk_cuda.redistribute(drafter, affinity)
        near = generators.logits(count * (K + 1), SIZE, seed + 99, scale=0.5).view(count, K + 1, -1)
        self.logits = torch.cat([probs, probs[:, :1]], 1).log() + near
        self.arena, slots = DraftArena(affinity, count, K), torch.arange(count)
        self.counters = Counters(rdk_cuda.Vocabulary.identity(SIZE), self.arena.device)
        keys = {"seeds": slots + seed, "positions": torch.full_like(slots, 10)}
        self.drafts = [
            self.arena.draft(
                logits, step, slots=slots, temperature=torch.full((count,), 0.8), **keys
            )
            for step, logits in enumerate(drafter.unbind(1))
        ]
        self.cases = []
        for slot, (name, (drafted, left, filled)) in enumerate(KINDS.items()):
            given = PARAMETERS[(seed + slot) % len(PARAMETERS)]
            params = SamplingParams(temperature=0.8, seed=seed + slot, **given)
            drawn = [int(tokens[slot]) for tokens in self.drafts]
            if params.structured_outputs is not None:
                self.logits[slot, :, FORBIDDEN] = -torch.inf
                left = min([left, *(j for j, token in enumerate(drawn) if token in FORBIDDEN)])
            tokens = [random.randrange(SIZE) for _ in range(10)]
            case = SimpleNamespace(name=name, slot=slot, params=params, drafted=drafted)
            case.prompt, case.output = (tokens[:5], tokens[5:]) if drafted else (tokens, [])
            case.drawn, case.drafts = drawn[:left], [*drawn[:left], *[-1] * filled]
            self.cases.append(case)

    def found(self, cases: list[Any], made: Any, first: list[int]) -> tuple[Any, dict[str, int]]:
        """Of each case its tokens, and their log-probabilities from a row on; what was counted."""
        rows = [[t for t in row if t >= 0] for row in made.sampled_token_ids.tolist()]
        asked = [case.params.logprobs for case in cases]
        said = [
            of and made.logprobs_tensors.logprobs[row:][: len(tokens), : of + 1].tolist()
            for of, row, tokens in zip(asked, first, rows, strict=True)
        ]
        return list(zip(rows, said, strict=True)), self.counters.read()


def changed(case: Any, **changes: Any) -> Any:
    return SimpleNamespace(**vars(case) | changes)
