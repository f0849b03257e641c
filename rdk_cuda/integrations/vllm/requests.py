"""The running requests of a worker: their seeds, contexts and drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Requests:
    """The requests of vLLM's model runner, in the order of its batch.

    Args:
        runner: vLLM's `GPUModelRunner` (V1), which the one for CPUs is, too.
        max_scheduled: of how many tokens the scheduler makes a step, at most.
        longest_prefill: its `long_prefill_token_threshold`; 0 for none.

    Attributes:
        scheduled: `num_scheduled_tokens` of the step that runs, in the scheduler's order.
        may_shard: whether the logits that it computes next may stay in shards.
        group: the ranks that have a shard each of the step's logits; None: rows are whole.
        decided: `[B, n]` the tokens that the step has decided, -1 for none.
        drafts: `[B]` each, what the step drafts, in the order of the batch that drafts.
    """

    def __init__(self, runner: Any, max_scheduled: int, longest_prefill: int) -> None:
        self.runner = runner
        self.max_scheduled, self.longest_prefill = max_scheduled, longest_prefill
        self.scheduled: dict[str, int] = {}
        self.may_shard, self.group = False, None
        self.decided: Tensor | None = None
        self.drafts: list[Tensor] = []
        self._slots: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        self._seeds_of_step: Tensor | None = None
        self._window: Tensor
        seed = runner.vllm_config.model_config.seed
        self._generator = torch.Generator().manual_seed(seed or 0)

    @property
    def ids(self) -> list[str]:
        """Of the requests in the batch, in its order."""
        ids: list[str] = self.runner.input_batch.req_ids
        return ids

    def begin_step(
        self, scheduled: dict[str, int], has_grammar: bool, resumed: Iterable[str] = ()
    ) -> None:
        """Begin a step with these numbers of tokens; the batch is the same until the next one.

        Requests that were preempted and are resumed have lost their drafts, whatever they were.
        """
        for name in resumed:
            self._slots.pop(name, None)
        self.scheduled, self._seeds_of_step = scheduled, None
        self.may_shard, self.group = not has_grammar, None

    def seeds(self, device: torch.device) -> Tensor:
        """`[B]` int64: the bits of each request's own seed, or of one drawn when asked first."""
        if self._seeds_of_step is None:
            running = self.runner.requests
            self._seeds = {name: seed for name, seed in self._seeds.items() if name in running}
            for name in self.ids:
                if name not in self._seeds:
                    given = running[name].sampling_params.seed
                    drawn = torch.randint(2**63 - 1, (), generator=self._generator, device="cpu")
                    self._seeds[name] = int(drawn) if given is None else int(given)
            own = [(self._seeds[name] + 2**63) % 2**64 - 2**63 for name in self.ids]
            self._seeds_of_step = torch.tensor(own, dtype=torch.int64, device=device)
        return self._seeds_of_step

    def contexts(self, width: int) -> Tensor:
        """`[B, width]` int32, the last tokens of each request, newest last, -1 before the first.

        They end with what the step has decided and drafted. To be asked for at each draft.
        """
        if self.drafts:
            newest = self.drafts[-1][:, None].int()
            self._window = torch.cat([self._window[:, 1:], newest], 1)
            return self._window
        batch, size = self.runner.input_batch, len(self.ids)
        lengths = torch.from_numpy(batch.num_tokens_no_spec)[:size, None]
        known = self._tokens_at(lengths + torch.arange(-width, 0, device="cpu"), -1)
        if self.decided is not None:
            count = (self.decided >= 0).sum(1, keepdim=True)
            known = torch.cat([known.to(self.decided.device), self.decided.int()], 1)
            known = known.gather(1, count + torch.arange(width, device=known.device))
        self._window = known
        return known

    def outputs(self, padding: int) -> Tensor:
        """Return `[B, n]` int32, what each request has put out before this step, then `padding`."""
        batch, size = self.runner.input_batch, len(self.ids)
        first = torch.from_numpy(batch.num_prompt_tokens)[:size, None]
        counts = torch.from_numpy(batch.num_tokens_no_spec)[:size, None] - first
        places = torch.arange(int(counts.max()), device="cpu")
        return self._tokens_at(torch.where(places < counts, first + places, -1), padding)

    def _tokens_at(self, places: Tensor, missing: int) -> Tensor:
        """`[B, n]` int32, each request's tokens on the host; `missing` where a place is below 0."""
        tokens = torch.from_numpy(self.runner.input_batch.token_ids_cpu)[: len(places)]
        return tokens.gather(1, places.clamp(min=0).long()).masked_fill_(places < 0, missing)

    def begin_drafts(self) -> None:
        """Begin drafts, each request's in the slot of its place.

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
    ) -> dict[int, int]:
        """Find the drafts that requests lost because a grammar forbids them, for no other reason.

        vLLM's scheduler drops a draft that a grammar forbids, with those behind it. So
        whether a position is drafted depends on the token drawn there (DESIGN section 5). The
        scheduler also drops drafts for which a step or the context has no room, which depends on no
        token. Where that limit is reached, the draft would have ended there in any case.

        Args:
            slots: of `take_slots`. num_drafts: `[B]`, those that are left.
            positions: `[B]`, of the first drafted tokens. Read only where a draft may be lost.

        Returns:
            By place in the batch.
        """
        ids, running, drafted = self.ids, self.runner.requests, len(self.drafts)
        shorter = [
            b
            for b, (slot, count) in enumerate(zip(slots, num_drafts, strict=True))
            if slot >= 0
            and count < drafted
            and running[ids[b]].sampling_params.structured_outputs is not None
        ]
        if not shorter:
            return {}
        left, before = {}, self.max_scheduled
        for name, count in self.scheduled.items():
            before -= count
            left[name] = before
        first = positions.tolist()
        return {
            b: int(self.drafts[num_drafts[b]][slots[b]])
            for b in shorter
            if left[ids[b]] > 0
            and not 0 < self.longest_prefill <= self.scheduled[ids[b]]
            and first[b] + num_drafts[b] < self.runner.max_model_len - 1
        }
