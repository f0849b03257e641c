"""vLLM's proposers with `rdk::draft` in place of their draw from the drafter's head.

A proposer's forward passes stay vLLM's. The logits of drafts lie in a `DraftArena` until the next
step verifies it: the slot of a request is its place in the batch that drafted. vLLM itself carries
tokens only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .draft_head import DraftHead
from .requests import Requests


class Proposer(DraftHead):
    """The part of a proposer that is the same for every method of vLLM."""

    _requests: Requests

    def _sample_draft_tokens(
        self, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, None]:
        batch = len(self._requests.ids)
        temperature = self._requests.temperature(sampling_metadata, hidden_states.device)
        if len(hidden_states) == batch:
            return self._drawn(hidden_states, temperature), None
        every = hidden_states.view(batch, -1, hidden_states.shape[-1])  # a block drafter's
        drawn = [self._drawn(hidden, temperature) for hidden in every.unbind(1)]
        return torch.stack(drawn, 1).flatten(), None

    def _drawn(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        requests = self._requests
        logits, tokens, columns = self.score(
            hidden, lambda: requests.contexts(self.window, self.arena.rows.tokens)
        )
        drawn = self.arena.draft(
            logits,
            len(requests.drafts),
            slots=None,
            temperature=temperature,
            seeds=requests.seeds(hidden.device),
            positions=requests.first(),
            dynamic_tokens=tokens,
            dynamic_logits=columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        self.compare("drafted tokens", drawn)
        requests.drafts.append(drawn)
        return drawn
