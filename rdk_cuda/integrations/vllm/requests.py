"""What a worker knows of the running requests: their seeds, contexts and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Requests"]

_LONGEST_CONTEXT = 4096  # tokens that sources of dynamic tokens are shown


class Requests:
    """The requests of vLLM's model runner, in the order of its batch.

    Args:
        runner: vLLM's `GPUModelRunner` (V1), which the one for CPUs is, too.
        max_scheduled: of how many tokens the scheduler makes a step, at most.
        longest_prefill: its `long_prefill_token_threshold`; 0 for none.

    Attributes:
        scheduled: `num_scheduled_tokens` of the step that runs, in the scheduler's order.
        decided: `[B, n]` the tokens that the step has decided, -1 for none.
    """

    def __init__(self, runner: Any, max_scheduled: int, longest_prefill: int) -> None:
        self.runner = runner
        self.max_scheduled, self.longest_prefill = max_scheduled, longest_prefill
        self.scheduled: dict[str, int] = {}
        self.decided: Tensor | None = None
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

    def contexts(self, drafted: Sequence[Tensor]) -> Tensor:
        """`[B, w]` int64, the last tokens of each request, newest last, -1 before the first.

        Args:
            drafted: `[B]` each, the drafts of this step so far.
        """
        batch, sequences = self.runner.input_batch, []
        decided = [] if self.decided is None else self.decided.tolist()
        newest = torch.stack(list(drafted), 1).tolist() if drafted else [[]] * len(self.ids)
        for b in range(len(self.ids)):
            length = int(batch.num_tokens_no_spec[b])
            known = batch.token_ids_cpu[b, max(0, length - _LONGEST_CONTEXT) : length].tolist()
            own = [token for token in decided[b] if token >= 0]
            sequences.append([*known, *own, *newest[b]])
        longest = max(map(len, sequences))
        return torch.tensor(
            [[-1] * (longest - len(one)) + one for one in sequences],
            dtype=torch.int64,
            device="cpu",
        )

    def draft_rows(self, num_drafts: Sequence[int]) -> tuple[Tensor | None, list[int]]:
        """What the drafts of the last step were drawn from, and where each request's begins.

        Returns:
            The runner's `_draft_probs`, flattened to `[B' K, W]`, or None if no request has any
            there; and for each request the row of its first draft, -1 where there is none.
        """
        kept, names = self.runner._draft_probs, self.runner._draft_prob_req_ids
        if kept is None or names is None:
            return None, [-1] * len(num_drafts)
        longest = kept.shape[1]
        place = {name: row * longest for row, name in enumerate(names)}
        begins = [place.get(name, -1) for name in self.ids]
        return (kept.flatten(0, 1) if max(begins) >= 0 else None), begins

    def cut_by_grammar(self, num_drafts: Sequence[int], longest: int, room: Tensor) -> list[bool]:
        """Which requests lost a draft because a grammar forbids it, and for no other reason.

        vLLM's scheduler drops a draft that a grammar forbids, with those behind it. That makes
        whether a position is drafted depend on the token drawn there (DESIGN section 5). The
        scheduler also drops drafts for which a step or the context has no room, which depends on no
        token. Where that limit is reached, the draft would have ended there in any case.

        Args:
            num_drafts: `[B]`, those that are left.
            longest: how many drafts there were.
            room: `[B]`, how many more positions the model can read.
        """
        left, before = {}, self.max_scheduled
        for name, count in self.scheduled.items():
            before -= count
            left[name] = before
        return [
            count < longest
            and self.runner.requests[name].sampling_params.structured_outputs is not None
            and left[name] > 0
            and not 0 < self.longest_prefill <= self.scheduled[name]
            and free > 0
            for name, count, free in zip(self.ids, num_drafts, room.tolist(), strict=True)
        ]
