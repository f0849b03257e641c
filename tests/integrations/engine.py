"""Running requests of a serving engine: what they draft, and what the Python layer makes of it.

Every case that the engines have: requests with as many drafts as there is room for, with fewer, or
with none, in the middle of their prompt, greedy, and drafts that the engine filled up with -1.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.functional import Method
from rdk_cuda.integrations.draft_arena import DraftArena
from tests import generators

TARGET_SIZE, SLOTS, K = 40, 8, 3


@dataclass(frozen=True)
class Request:
    """`newest` is the position of its newest token, which the target has not read yet."""

    name: str
    slot: int
    newest: int
    temperature: float
    seed: int
    drafts: int
    filled_up: int = 0  # of the drafts, how many at the end are -1


REQUESTS = (
    Request("drafts less than it could", slot=3, newest=17, temperature=0.9, seed=11, drafts=2),
    Request("has no drafts", slot=0, newest=4, temperature=1.2, seed=-12, drafts=0),
    Request("is greedy", slot=5, newest=0, temperature=0.0, seed=13, drafts=3),
    Request("is in its prompt", slot=1, newest=2048, temperature=1.0, seed=14, drafts=0),
    Request("was filled up", slot=4, newest=2**33, temperature=0.7, seed=15, drafts=3, filled_up=2),
    Request(
        "was filled up with nothing else", 6, 9, temperature=1.0, seed=16, drafts=1, filled_up=1
    ),
    Request("drafts all it can", slot=7, newest=30, temperature=1.0, seed=17, drafts=3),
)


class Running:
    """The requests in the batch's order, drafted into an arena, and their target's logits."""

    def __init__(self, requests: tuple[Request, ...] = REQUESTS, *, dynamic: bool = False) -> None:
        self.requests = requests
        self.affinity = generators.affinity("mixed-1", TARGET_SIZE)
        # The target is near the drafter, so that drafts are accepted and rejected.
        count = len(requests)
        self.draft_logits = generators.logits(count * K, self.affinity.draft_size, 1).view(
            count, K, -1
        )
        self.dynamic: list[dict[str, Tensor]] = [{} for _ in range(K)]
        if dynamic:
            self.dynamic = [
                {
                    "dynamic_tokens": generators.dynamic_tokens(count, 4, TARGET_SIZE),
                    "dynamic_logits": generators.logits(count, 4, 20 + step),
                }
                for step in range(K)
            ]
        probs = rdk_cuda.redistribute(self.draft_logits, self.affinity)
        rows = torch.cat([probs, probs[:, :1]], 1).log() + generators.logits(
            count * (K + 1), TARGET_SIZE, 2, scale=0.5
        ).view(count, K + 1, -1)
        self.target_logits = rows  # [requests, K + 1, V_t]
        self.arena = DraftArena(self.affinity, SLOTS, K, dynamic_width=4 if dynamic else 0)
        self.slots = self.each("slot", torch.int32)
        self.newest = self.each("newest", torch.int64)
        self.temperature = self.each("temperature", torch.float32)
        self.seeds = self.each("seed", torch.int64)
        self.drafted = torch.stack([self._drafted(step) for step in range(K)], 1)
        for b, request in enumerate(requests):
            self.drafted[b, request.drafts - request.filled_up : request.drafts] = -1

    def each(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(request, name) for request in self.requests], dtype=dtype)

    def _drafted(self, step: int) -> Tensor:
        return self.arena.draft(
            self.draft_logits[:, step],
            step,
            slots=self.slots,
            temperature=self.temperature,
            seeds=self.seeds,
            positions=self.newest + 1,
            **self.dynamic[step],
        )

    def by_slot(self, values: Tensor) -> Tensor:
        """As vLLM keeps what belongs to requests; other slots hold what must not be used."""
        arena = torch.full((SLOTS,), 77, dtype=values.dtype)
        arena[self.slots.long()] = values
        return arena

    def packed(self, per_position: Tensor, more: int = 0) -> Tensor:
        """The first `drafts + more` entries of every request, one after the other."""
        return torch.cat(
            [row[: r.drafts + more] for row, r in zip(per_position, self.requests, strict=True)]
        )

    def directly(
        self, b: int, *, distribution: bool = True, method: Method = "token"
    ) -> tuple[list[int], int]:
        """What `rdk_cuda.draft` and `rdk_cuda.verify` decide for one request by itself."""
        request = self.requests[b]
        rows = self.target_logits[b : b + 1, : request.drafts + 1]
        key = {"seeds": [request.seed], "positions": request.newest + 1}
        tokens = self.drafted[b : b + 1, : request.drafts]
        draft = rdk_cuda.Draft.without_distribution(tokens, **key)  # type: ignore[arg-type]
        if distribution and request.drafts:
            parts: list[rdk_cuda.Draft] = []
            for step in range(request.drafts):
                link = (
                    {"after": parts[-1]} if parts else {**key, "temperature": request.temperature}
                )
                dynamic = {name: rows[b : b + 1] for name, rows in self.dynamic[step].items()}
                logits = self.draft_logits[b : b + 1, step]
                parts.append(rdk_cuda.draft(logits, self.affinity, **link, **dynamic))
            draft = rdk_cuda.Draft.join(parts)
            real = request.drafts - request.filled_up
            assert torch.equal(draft.tokens[:, :real], tokens[:, :real])
            draft = dataclasses.replace(draft, tokens=tokens)
        decided, accepted, _ = rdk_cuda.verify(
            rows, draft, self.affinity, request.temperature, method=method
        )
        return decided[0, : int(accepted) + 1].tolist(), int(accepted)

    def expected(self, *, distribution: bool = True, method: Method = "token") -> list[list[int]]:
        return [
            self.directly(b, distribution=distribution, method=method)[0]
            for b in range(len(self.requests))
        ]


def without_placeholders(rows: Tensor) -> list[list[int]]:
    """The tokens of every request; -1 may only follow them."""
    found = [[token for token in row if token != -1] for row in rows.tolist()]
    assert [row + [-1] * (rows.shape[1] - len(row)) for row in found] == rows.tolist()
    return found
