"""vLLM's proposers with `rdk::draft` in place of their draw from the drafter's head.

A proposer's forward passes stay vLLM's. The logits are those of the small head, and what was drawn
from is returned where vLLM expects draft probabilities. It carries them, by request, to the step
that verifies, whatever the order of the batch is by then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer

from ... import _ops as operators
from ...drafter import PrunedDrafter
from .draft_head import DraftHead
from .requests import Requests

__all__ = ["PROPOSERS", "DraftState", "DraftStateLayout"]


class DraftState(NamedTuple):
    """What N drafts were drawn from, as `rdk::verify` takes it.

    Attributes:
        logits: `[N, V_d]`. stats: `[N, 2 + R]` float32. tokens: `[N]` int32, what was drawn.
        dynamic_tokens, dynamic_logits: `[N, C]`, or None.
    """

    logits: Tensor
    stats: Tensor
    tokens: Tensor
    dynamic_tokens: Tensor | None
    dynamic_logits: Tensor | None


class DraftStateLayout(NamedTuple):
    """A draft state as one row of numbers in the dtype of the logits, `width` of them.

    vLLM carries one tensor from draft to verification. int32 and float32 travel as their bytes.

    Attributes:
        draft_size, rank: V_d and R of the affinity. dynamic: C.
        dtype: of the drafter's logits.
    """

    draft_size: int
    rank: int
    dynamic: int
    dtype: torch.dtype

    @property
    def _widths(self) -> list[int]:
        words = 4 // self.dtype.itemsize
        stats, dynamic = (2 + self.rank) * words, self.dynamic
        return [self.draft_size, dynamic, stats, words, dynamic * words]

    @property
    def width(self) -> int:
        """How many numbers one drafted position takes."""
        return sum(self._widths)

    def pack(self, state: DraftState) -> Tensor:
        """`[N, width]`."""
        logits, stats, tokens, dynamic_tokens, dynamic_logits = state
        parts = [logits, dynamic_logits, stats, tokens[:, None].int(), dynamic_tokens]
        return torch.cat([part.view(self.dtype) for part in parts if part is not None], 1)

    def unpack(self, packed: Tensor) -> DraftState:
        """The parts of `[N, width]`; the logits are a view of it."""
        logits, dynamic_logits, stats, tokens, dynamic_tokens = packed.split(self._widths, 1)
        drawn = tokens.contiguous().view(torch.int32)[:, 0]
        own = stats.contiguous().view(torch.float32)
        if not self.dynamic:
            return DraftState(logits, own, drawn, None, None)
        named = dynamic_tokens.contiguous().view(torch.int32)
        return DraftState(logits, own, drawn, named, dynamic_logits.contiguous())


class _Drafting(DraftHead):
    """The part of a proposer that is the same for every method of vLLM.

    Attributes:
        layout: of what is carried to the verification.
    """

    layout: DraftStateLayout
    _requests: Requests
    _drawn: list[Tensor]
    _first: Tensor

    def serve(self, requests: Requests, calibrated: PrunedDrafter | None) -> Any:
        """Whom to draft for, and with which drafter; None for the model's own head."""
        self._requests, self._calibrated, self._drawn = requests, calibrated, []
        return self

    def fit_head(self) -> None:
        """Also makes `layout`."""
        super().fit_head()
        affinity, dtype = self.drafter.affinity, self.drafter.weight.dtype
        self.layout = DraftStateLayout(
            affinity.draft_size, affinity.rank, self.dynamic_width, dtype
        )

    def set_inputs_first_pass(self, *args: Any, **kwargs: Any) -> tuple[int, Tensor, Any]:
        """Also notes the position of the first drafted token of each request."""
        inputs: tuple[int, Tensor, Any] = super().set_inputs_first_pass(  # type: ignore[misc]
            *args, **kwargs
        )
        # A draft model reads the newest token at its own position. EAGLE reads it at that of the
        # hidden state, one before.
        ahead = 2 if self.pass_hidden_states_to_model else 1  # type: ignore[attr-defined]
        read: Tensor = self.positions[inputs[1]]  # type: ignore[attr-defined]
        self._first, self._drawn = read.long() + ahead, []
        return inputs

    def _sample_draft_tokens(
        self, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, Tensor | None]:
        hidden = hidden_states
        logits, tokens, columns = self.score(hidden, lambda: self._requests.contexts(self._drawn))
        temperature = sampling_metadata.temperature
        if temperature is None:
            temperature = torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device)
        drawn, stats = operators.draft(
            logits,
            temperature,
            operators.step_keys(self._requests.seeds(hidden.device), self._first),
            self._first + len(self._drawn),
            *self.drafter.affinity.by_draft,
            tokens,
            columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        self._drawn.append(drawn)
        if sampling_metadata.all_greedy:
            return drawn, None
        return drawn, self.layout.pack(DraftState(logits, stats, drawn, tokens, columns))


class _DraftModel(_Drafting, DraftModelProposer):  # type: ignore[misc]
    pass


class _Eagle(_Drafting, EagleProposer):  # type: ignore[misc]
    pass


PROPOSERS: dict[str, type[Any]] = {"draft_model": _DraftModel, "eagle3": _Eagle}
