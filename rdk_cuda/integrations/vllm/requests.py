"""The running requests of a worker: their seeds, contexts and drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._ops.inputs import upload
from ...dynamic_tokens import KeptContexts


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
        drafts: `[B]` each, what the step drafts, in the order of the batch that drafts.
    """

    _decided: tuple[Tensor, Tensor]  # the tokens, and the positions of their first ones
    _first: Tensor | None
    _known: Tensor | None = None  # the last tokens before those

    def __init__(self, runner: Any, max_scheduled: int, longest_prefill: int) -> None:
        self.runner = runner
        self.max_scheduled, self.longest_prefill = max_scheduled, longest_prefill
        self.scheduled: dict[str, int] = {}
        self.may_shard, self.group = False, None
        self.drafts: list[Tensor] = []
        self._slots: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        self._seeds_of: tuple[list[str], Tensor] | None = None
        seed = runner.vllm_config.model_config.seed
        self._generator = torch.Generator().manual_seed(seed or 0)

    @property
    def ids(self) -> list[str]:
        """Of the requests in the batch, in its order."""
        ids: list[str] = self.runner.input_batch.req_ids
        return ids

    def params(self) -> list[Any]:
        """`SamplingParams` of each."""
        return [self.runner.requests[name].sampling_params for name in self.ids]

    def begin_step(
        self, scheduled: dict[str, int], has_grammar: bool, resumed: Iterable[str] = ()
    ) -> None:
        """Begin a step with these numbers of tokens; the batch is the same until the next one.

        Requests that were preempted and are resumed have lost their drafts, whatever they were.
        """
        for name in resumed:
            self._slots.pop(name, None)
        self.scheduled = scheduled
        self.may_shard, self.group = not has_grammar, None

    def seeds(self, device: torch.device) -> Tensor:
        """`[B]` int64: the bits of each request's own seed, or of one drawn when asked first."""
        if self._seeds_of is None or self._seeds_of[0] != self.ids:
            running = self.runner.requests
            self._seeds = {name: seed for name, seed in self._seeds.items() if name in running}
            for name in self.ids:
                if name not in self._seeds:
                    given = running[name].sampling_params.seed
                    drawn = torch.randint(2**63 - 1, (), generator=self._generator, device="cpu")
                    self._seeds[name] = int(drawn) if given is None else int(given)
            own = [self._seeds[name] % 2**64 for name in self.ids]
            self._seeds_of = [*self.ids], upload(np.array(own, np.uint64).view(np.int64), device)
        return self._seeds_of[1]

    def positions(self, num_drafts: Sequence[int]) -> Any:
        """`[B]` integers, the position of each request's first draft, or of its next token."""
        scheduled = [self.scheduled[name] for name in self.ids]
        computed = self.runner.input_batch.num_computed_tokens_cpu[: len(scheduled)]
        return computed + np.array(scheduled) - np.array(num_drafts)

    def temperature(self, sampling: Any, device: torch.device) -> Tensor:
        """`[B]` float32; vLLM has none where all requests are greedy, and may have more."""
        own: Tensor | None = sampling.temperature
        if own is None:
            return torch.zeros(len(self.ids), dtype=torch.float32, device=device)
        return own[: len(self.ids)] if len(own) > len(self.ids) else own

    def contexts(self, window: int, drafts: Tensor) -> KeptContexts:
        """Say where the last tokens of each request are, `window` of them and more.

        They end with what the step has decided and drafted. To be asked for at each draft.

        Args:
            drafts: `[>= B, K]` int64, where the step's drafts are stored.
        """
        decided = self._decided[0]
        if self._known is None:
            ends = self.runner.input_batch.num_tokens_no_spec[: len(self.ids), None]
            self._known = upload(self._tokens_at(ends + np.arange(-window, 0), -1), decided.device)
        return KeptContexts(self._known, decided, drafts, len(self.drafts), window=window)

    def num_outputs(self) -> Any:
        """`[B]` integers, how many tokens each request has put out before this step."""
        batch, size = self.runner.input_batch, len(self.ids)
        return batch.num_tokens_no_spec[:size] - batch.num_prompt_tokens[:size]

    def outputs(self, padding: int) -> Any:
        """`[B, n]` int32 on the host, what each has put out before this step, then `padding`."""
        counts = self.num_outputs()[:, None]
        first = self.runner.input_batch.num_prompt_tokens[: len(counts), None]
        places = np.arange(counts.max())
        return self._tokens_at(np.where(places < counts, first + places, -1), padding)

    def _tokens_at(self, places: Any, missing: int) -> Any:
        """`[B, n]` int32, each request's tokens on the host; `missing` where a place is below 0."""
        tokens = self.runner.input_batch.token_ids_cpu[: len(places)]
        found = np.take_along_axis(tokens, np.maximum(places, 0), 1)
        return np.where(places < 0, np.int32(missing), found)

    def decide(self, tokens: Tensor, positions: Tensor) -> None:
        """Take what the step has decided, `[B, n]` int32 with -1 for none, from these positions on.

        Then each request drafts in the slot of its place. While a prefill goes on, vLLM drops what
        is drafted behind it, so that has no slot.
        """
        self._decided, self._first, self._known = (tokens, positions), None, None
        size = len(self.ids)
        read = self.positions([0] * size) >= self.runner.input_batch.num_tokens_no_spec[:size]
        self._slots = {name: slot for slot, name in enumerate(self.ids) if read[slot]}
        self.drafts = []

    def first(self) -> Tensor:
        """`[B]` int64, the position of each request's first draft."""
        if self._first is None:
            tokens, positions = self._decided
            self._first = positions + (tokens >= 0).sum(1)
        return self._first

    def take_slots(self) -> list[int]:
        """Where the batch's requests drafted in the last step, once; -1 for those that did not."""
        slots, self._slots = self._slots if self.drafts else {}, {}
        return [slots.get(name, -1) for name in self.ids]

    def forbidden_drafts(
        self, slots: Sequence[int], num_drafts: Sequence[int], positions: Any
    ) -> list[int]:
        """Find the drafts that requests lost because a grammar forbids them, for no other reason.

        vLLM's scheduler drops a draft that a grammar forbids, with those behind it. So
        whether a position is drafted depends on the token drawn there (DESIGN section 5). The
        scheduler also drops drafts for which a step or the context has no room, which depends on no
        token. Where that limit is reached, the draft would have ended there in any case.

        Args:
            slots: of `take_slots`. num_drafts: `[B]`, those that are left.
            positions: `[B]`, of the first drafted tokens.

        Returns:
            Their requests' places in the batch.
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
            return []
        left, before = {}, self.max_scheduled
        for name, count in self.scheduled.items():
            before -= count
            left[name] = before
        return [
            b
            for b in shorter
            if left[ids[b]] > 0
            and not 0 < self.longest_prefill <= self.scheduled[ids[b]]
            and positions[b] + num_drafts[b] < self.runner.max_model_len - 1
        ]
