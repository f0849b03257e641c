"""What a worker knows of the running requests: their seeds, contexts and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .draft_head import LONGEST_CONTEXT

__all__ = ["Requests"]


class Requests:
    """The requests of vLLM's model runner, in the order of its batch.

    Args:
        runner: vLLM's `GPUModelRunner` (V1), which the one for CPUs is, too.
        max_scheduled: of how many tokens the scheduler makes a step, at most.
        longest_prefill: its `long_prefill_token_threshold`; 0 for none.

    Attributes:
        scheduled: `num_scheduled_tokens` of the step that runs, in the scheduler's order.
        decided: `[B, n]` the tokens that the step has decided, -1 for none.
        drafts: `[B]` each, what the step drafts, in the order of the batch that drafts.
    """

    def __init__(self, runner: Any, max_scheduled: int, longest_prefill: int) -> None:
        self.runner = runner
        self.max_scheduled, self.longest_prefill = max_scheduled, longest_prefill
        self.scheduled: dict[str, int] = {}
        self.decided: Tensor | None = None
        self.drafts: list[Tensor] = []
        self._slots: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        seed = runner.vllm_config.model_config.seed
        self._generator = torch.Generator().manual_seed(seed or 0)

    @property
    def ids(self) -> list[str]:
        """Of the requests in the batch, in its order."""
        ids: list[str] = self.runner.input_batch.req_ids
        return ids

    def seeds(self, device: torch.device) -> Tensor:
        """`[B]` int64: each request's own seed, or one that is drawn when it is first asked for."""
        running = self.runner.requests
        self._seeds = {name: seed for name, seed in self._seeds.items() if name in running}
        for name in self.ids:
            if name not in self._seeds:
                given = running[name].sampling_params.seed
                drawn = torch.randint(2**63 - 1, (), generator=self._generator, device="cpu")
                self._seeds[name] = int(drawn) if given is None else int(given)
        return torch.tensor(
            [self._seeds[name] for name in self.ids], dtype=torch.int64, device=device
        )

    def contexts(self) -> Tensor:
        """`[B, w]` int64, the last tokens of each request, newest last, -1 before the first."""
        batch, sequences = self.runner.input_batch, []
        decided = [] if self.decided is None else self.decided.tolist()
        newest = torch.stack(self.drafts, 1).tolist() if self.drafts else [[]] * len(self.ids)
        for b in range(len(self.ids)):
            length = int(batch.num_tokens_no_spec[b])
            known = batch.token_ids_cpu[b, max(0, length - LONGEST_CONTEXT) : length].tolist()
            own = [token for token in decided[b] if token >= 0]
            sequences.append([*known, *own, *newest[b]])
        longest = max(map(len, sequences))
        return torch.tensor(
            [[-1] * (longest - len(one)) + one for one in sequences],
            dtype=torch.int64,
            device="cpu",
        )

    def begin_drafts(self) -> None:
        """The batch drafts, each request into the slot of its place.

        While a prefill goes on, vLLM drops what is drafted behind it, so that has no slot.
        """
        goes_on = self.runner.discard_request_mask.np
        self._slots = {name: slot for slot, name in enumerate(self.ids) if not goes_on[slot]}
        self.drafts = []

    def take_slots(self) -> list[int]:
        """Where the batch's requests drafted in the last step, once; -1 for those that did not."""
        slots, self._slots = self._slots, {}
        return [slots.get(name, -1) for name in self.ids]

    def forbidden_drafts(
        self, slots: Sequence[int], num_drafts: Sequence[int], positions: Tensor
    ) -> list[int | None]:
        """The draft that each request lost because a grammar forbids it, and for no other reason.

        vLLM's scheduler drops a draft that a grammar forbids, with those behind it. That makes
        whether a position is drafted depend on the token drawn there (DESIGN section 5). The
        scheduler also drops drafts for which a step or the context has no room, which depends on no
        token. Where that limit is reached, the draft would have ended there in any case.

        Args:
            slots: of `take_slots`. num_drafts: `[B]`, those that are left.
            positions: `[B]`, of the first drafted tokens.
        """
        left, before = {}, self.max_scheduled
        for name, count in self.scheduled.items():
            before -= count
            left[name] = before
        lost: list[int | None] = []
        for name, slot, count, first in zip(
            self.ids, slots, num_drafts, positions.tolist(), strict=True
        ):
            by_grammar = (
                slot >= 0
                and count < len(self.drafts)
                and self.runner.requests[name].sampling_params.structured_outputs is not None
                and left[name] > 0
                and not 0 < self.longest_prefill <= self.scheduled[name]
                and first + count < self.runner.max_model_len - 1
            )
            lost.append(int(self.drafts[count][slot]) if by_grammar else None)
        return lost
