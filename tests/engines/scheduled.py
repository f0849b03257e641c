"""What vLLM's scheduler may hand over: every kind of request with every parameter.

Targets and drafters are tables, so that a step is decided without an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
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
    "has no room for drafts": (True, 0, 0),
    "reads its prompt": (False, 0, 0),
    "is new and filled up": (False, 0, K),
    "is new and filled up a little": (False, 0, 1),
    "was preempted": (True, 0, 0),
    "was preempted and is filled up": (True, 0, K),
    "had drafts that were forbidden": (True, 1, K - 1),
}
PREEMPTED = [kind for kind in KINDS if "preempted" in kind]
GRAMMAR: dict[str, Any] = {"structured_outputs": StructuredOutputsParams(choice=["a"])}
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7, "repetition_penalty": 1.3},
    {"logit_bias": {3: 4.0, 5: -4.0}, "logprobs": 3},
    {"allowed_token_ids": list(range(30))},
    {"min_tokens": 9, "stop_token_ids": [1, 2, 4, 8, 16], "presence_penalty": 0.5},
    {"min_p": 0.1, "logprobs": 2},
    {"top_k": 5, "top_p": 0.9},
    {"temperature": 0.0, "presence_penalty": 1.0},
    {"bad_words": [[3], *([token, 6] for token in range(0, SIZE, 4))]},
    GRAMMAR,
    GRAMMAR | {"presence_penalty": 0.3},
]


@dataclass(frozen=True)
class Case:
    """A request of a step. `drafts` are what vLLM schedules, `slot` is where they were drawn."""

    name: str
    slot: int
    prompt: list[int]
    output: list[int]
    params: SamplingParams
    drafted: bool
    drafts: list[int]

    @property
    def drawn(self) -> list[int]:
        return [token for token in self.drafts if token >= 0]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]


class Step:
    """A request of each kind, each with another parameter: all pairs in `len(PARAMETERS)` steps."""

    def __init__(self, seed: int) -> None:
        random, kinds = Random(seed), list(KINDS)
        random.shuffle(kinds)
        count = len(kinds)
        self.affinity = generators.affinity("mixed-1", SIZE)
        self.arena = DraftArena(self.affinity, count, K)
        draft_logits = generators.logits(count * K, self.affinity.draft_size, seed).view(
            count, K, -1
        )
        probs = rdk_cuda.redistribute(draft_logits, self.affinity)
        near = generators.logits(count * (K + 1), SIZE, seed + 99, scale=0.5).view(count, K + 1, -1)
        self.logits = torch.cat([probs, probs[:, :1]], 1).log() + near
        made = []
        for slot, kind in enumerate(kinds):
            given = dict(PARAMETERS[(seed + list(KINDS).index(kind)) % len(PARAMETERS)])
            words = given.pop("bad_words", None)
            params = SamplingParams(**{"seed": 100 * seed + slot, "temperature": 0.8} | given)
            params._bad_words_token_ids = words
            prompt, output = ([random.randrange(SIZE) for _ in range(n)] for n in (5, 3 + slot))
            drafted, _, _ = KINDS[kind]
            output = output if drafted else []
            made.append(Case(kind, slot, prompt, output, params, drafted, []))
        self.drafts = [
            self.arena.draft(
                draft_logits[:, step],
                step,
                slots=torch.arange(count),
                temperature=torch.tensor([case.params.temperature for case in made]),
                seeds=torch.tensor([case.params.seed for case in made]),
                positions=torch.tensor([len(case.tokens) for case in made]),
            )
            for step in range(K)
        ]
        self.cases = [self._scheduled(case) for case in made]

    def _scheduled(self, case: Case) -> Case:
        _, left, filled = KINDS[case.name]
        own = [int(drawn[case.slot]) for drawn in self.drafts]
        if case.params.structured_outputs is not None:
            self.logits[case.slot, :, FORBIDDEN] = -torch.inf
            allowed = [token not in FORBIDDEN for token in own]
            left = min(left, allowed.index(False) if False in allowed else K)
        return Case(**vars(case) | {"drafts": [*own[:left], *[-1] * filled]})

    def counters(self) -> Counters:
        made = Counters(rdk_cuda.Vocabulary.identity(SIZE), self.arena.device)
        made.active = True
        return made
