"""The decoder that hides the target's latency behind drafting."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from statistics import mean, median
from typing import Any, cast

from ..._ops.inputs import whole_number
from ...affinity import Affinity
from ...decoding.decoder import SpeculativeDecoder
from ...decoding.generation import Batch, Generation, Kind, Statistics, kinds_of
from ...decoding.loop import Hooks
from ...decoding.models import CausalModel, StateDrafter
from ...decoding.proposers import DrafterChain
from .run import Run
from .speeds import Plan, planned
from .workers import RECENT, Factory, Workers

_OPTIONS = {"draft_temperature", "truncate_drafts", "vocabulary", "dynamic_tokens", "full_head"}


class ParallelDecoder(SpeculativeDecoder):
    """Continue prompts, one after the other, with copies of the target in their own processes.

    Speculation parallelism, or DSI (Timor et al., arXiv:2405.14105): the drafter does not wait. It
    drafts up to the first rejection, and each L drafts go to a free copy of the target.
    Where that is expected to be slower, because targets are few or little is accepted,
    it drafts and verifies in turn, with one of them. Another target reads for one
    that dies. After a call that was interrupted, as by Ctrl-C, the next one is right.

    Args:
        targets: each makes a copy of the target, in its own process: functions of a module, or
            `functools.partial`s of one, such as `partial(load, directory, device="cuda:1")`. A
            program that is run as a script needs `if __name__ == "__main__":`.
        drafter, affinity: as in `SpeculativeDecoder`, in this process; not a `StateDrafter`.
        lookahead: L, for DSI in any case. Tokens are then those of a `SpeculativeDecoder` with
            `draft_length=max_new_tokens`, from the same logits. None: whatever is the fastest by
            what was measured so far. The tokens' distribution is the same, but which tokens they
            are depends on times, too.
        timeout: seconds that a target may take for a pass, or to let a message in, before it
            counts as dead.
        start_timeout: seconds until all have to be loaded.
        options: draft_temperature, truncate_drafts, vocabulary, dynamic_tokens and full_head of
            `SpeculativeDecoder`. `generate` takes no process and no allowed.

    Attributes:
        plan: how the newest run was drafted and read.

    Raises:
        ValueError: what does not fit.
        RuntimeError: a target's process did not start; in `generate`, none is left.

    Example: examples/parallel_targets.py
    """

    proposer: DrafterChain

    def __init__(
        self,
        targets: Sequence[Factory],
        drafter: CausalModel,
        affinity: Affinity | None = None,
        *,
        lookahead: int | None = None,
        timeout: float = 60.0,
        start_timeout: float = 600.0,
        **options: Any,
    ) -> None:
        if not targets or isinstance(drafter, StateDrafter) or set(options) - _OPTIONS:
            raise ValueError(
                f"ParallelDecoder: got {len(targets)} targets, a {type(drafter).__name__} and "
                f"{sorted(options)}; needs at least one target, a drafter that does not read the "
                f"target's states, and no options but {sorted(_OPTIONS)}"
            )
        if lookahead is not None and whole_number("ParallelDecoder", "lookahead", lookahead) < 1:
            raise ValueError(f"ParallelDecoder: lookahead is {lookahead}; needs at least 1")
        width = drafter.vocabulary_size if affinity is None else affinity.target_size
        workers = Workers(targets, width, drafter.device, timeout, start_timeout)
        try:
            # Of its target it asks no more than what all of these have in common.
            super().__init__(cast(CausalModel, workers), drafter, affinity, **options)
        except BaseException:
            workers.close()
            raise
        self._workers, self.lookahead, self.plan = workers, lookahead, Plan(lookahead or 1)
        self._draft_times, self._accepted = deque[float](maxlen=RECENT), deque[bool](maxlen=256)

    def __enter__(self) -> ParallelDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the targets' processes. They also end with this one, however it ends."""
        self._workers.close()

    def _decode(self, batch: Batch, hooks: Hooks, statistics: Statistics) -> Generation:
        if (hooks.process, hooks.allowed) != (None, None):
            raise ValueError(
                "ParallelDecoder.generate: process and allowed are hooks of SpeculativeDecoder "
                "alone; leave them out"
            )
        logprobs = [self._continue(b, batch, hooks, statistics) for b in range(len(batch.seeds))]
        return Generation([s.new for s in batch.sequences], statistics, logprobs)

    def _continue(self, b: int, batch: Batch, hooks: Hooks, statistics: Statistics) -> list[float]:
        s, one = batch.sequences[b], slice(b, b + 1)
        limits = {name: values[one] for name, values in batch.limits.items()}
        own = Batch([s], batch.temperature[one], batch.seeds[one], limits)
        stop = None if hooks.stop is None else partial(hooks.stop, b)
        logprobs: list[float] = []
        self.proposer.reset(1)
        self._workers.rollback([0])
        while s.room:
            self.plan, step = self._planned(), own.step([s.room])
            run = Run(self.proposer, self.rule, self._workers, s, step, self.plan, hooks.logprobs)
            of_run: list[Kind] = []
            with closing(run.parts()) as parts:
                for tokens, scores, end in parts:
                    later = s.context[s.length + len(tokens) :]
                    kept = s.extend(tokens, stop)
                    kinds = kinds_of(tokens, end, self._pruned)[:kept]
                    of_run += kinds
                    logprobs += scores[:kept]
                    if hooks.on_tokens is not None:
                        hooks.on_tokens(b, tokens[:kept], list(kinds))
                    if s.ended:
                        break
                    if end is None:  # these drafts are still to be judged
                        s.context += later
            judged = [kind for kind in of_run if kind != "bonus"]
            statistics.count(of_run, len(judged))
            statistics.target_passes += run.passes - 1
            self._accepted.extend(kind != "resampled" for kind in judged)
            self._draft_times.extend(run.draft_times)
            # The newest token is not read yet, and what stands in its place was rejected.
            self.proposer.rollback([s.length - 1])
            self._workers.rollback([s.length - 1])
        return logprobs

    def _planned(self) -> Plan:
        """Plan by the newest measurements; without any, pieces for whoever is free."""
        passes = self._workers.latencies
        if self.lookahead is not None or not (passes and self._draft_times and self._accepted):
            return Plan(self.lookahead or 1)
        cost = median(self._draft_times) / median(passes)
        return planned(cost, mean(self._accepted), len(self._workers))
