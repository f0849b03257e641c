"""vLLM's proposers with `rdk::draft` in place of their draw from the drafter's head.

A proposer's forward passes stay vLLM's. The logits of drafts lie in a `DraftArena` until the next
step verifies it: the slot of a request is its place in the batch that drafted. vLLM itself carries
tokens only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer

from ...drafter import PrunedDrafter
from .draft_head import DraftHead
from .requests import Requests
from .token_map import TokenMap


class _Drafting(DraftHead):
    """The part of a proposer that is the same for every method of vLLM."""

    _requests: Requests
    _first: Tensor

    def serve(self, requests: Requests, calibrated: PrunedDrafter | TokenMap | None) -> Any:
        """Set the requests and the drafter; None for the model's own head."""
        self._requests, self._calibrated = requests, calibrated
        return self

    def set_inputs_first_pass(self, *args: Any, **kwargs: Any) -> tuple[int, Tensor, Any]:
        inputs: tuple[int, Tensor, Any] = super().set_inputs_first_pass(  # type: ignore[misc]
            *args, **kwargs
        )
        # A draft model reads the newest token at its own position. EAGLE reads it at that of the
        # hidden state, one before.
        ahead = 2 if self.pass_hidden_states_to_model else 1  # type: ignore[attr-defined]
        read: Tensor = self.positions[inputs[1]]  # type: ignore[attr-defined]
        self._first = read.long() + ahead
        self._requests.begin_drafts()
        return inputs

    def _sample_draft_tokens(
        self, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, None]:
        requests, device = self._requests, hidden_states.device
        logits, tokens, columns = self.score(hidden_states, lambda: requests.contexts(self.window))
        temperature = sampling_metadata.temperature
        if temperature is None:
            temperature = torch.zeros(len(logits), dtype=torch.float32, device=device)
        drawn = self.arena.draft(
            logits,
            len(requests.drafts),
            slots=None,
            temperature=temperature,
            seeds=requests.seeds(device),
            positions=self._first,
            dynamic_tokens=tokens,
            dynamic_logits=columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        self.compare("drafted tokens", drawn)
        requests.drafts.append(drawn)
        return drawn, None


class _DraftModel(_Drafting, DraftModelProposer):  # type: ignore[misc]
    def read_as(self, reads: Tensor) -> None:
        """Read these tokens, `[V_t]`, in the place of the target's."""
        self.vocab_mapping.target_to_draft_ids = reads


class _Eagle(_Drafting, EagleProposer):  # type: ignore[misc]
    pass


PROPOSERS: dict[str, type[Any]] = {"draft_model": _DraftModel, "eagle3": _Eagle}
