"""The decoding loop, one for every proposer and rule.

In each step a proposer proposes, the target reads that in one pass, a rule decides what is accepted
and which token follows, the sequences grow, and what was rejected leaves the models' caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ..ranges import Range, mark
from .generation import Batch, Continuation, Generation, Kind, Statistics, Stop, kinds_of
from .models import CausalModel
from .proposal import Step
from .proposers import Proposer
from .rules import Decided, Logprobs, Rule
from .target_reading import reading_of

Process = Callable[[Sequence[Continuation], Tensor], Tensor]
"""A hook that changes the target's logits before they judge drafts. It is called with the sequences
and logits `[B, n, V_t]`, and returns logits of that shape. Row `[b, j]` predicts what follows the
tokens of sequence b and its first j drafts. Other rows, and sequences without room, are ignored."""

Allowed = Callable[[Sequence[Continuation], int], Tensor]
"""A hook for grammars. It is called with the sequences and n, and returns which tokens are allowed
in the rows that a `Process` gets: int32 `[B, n, ceil(V_t / 32)]`, one bit for each token, as
`rdk_cuda.verify` takes it."""

OnTokens = Callable[[int, list[int], list[Kind]], None]
"""Called with a sequence's number and its newest tokens, and how they were decided."""


@dataclass(frozen=True)
class Hooks:
    """The hooks of `SpeculativeDecoder.generate`, which watch and change a generation."""

    on_tokens: OnTokens | None = None
    process: Process | None = None
    allowed: Allowed | None = None
    logprobs: Logprobs = None
    stop: Stop | None = None


def decode(
    target: CausalModel,
    proposer: Proposer,
    rule: Rule,
    batch: Batch,
    hooks: Hooks,
    statistics: Statistics,
    pruned: Collection[int] = (),
) -> Generation:
    """Continue every sequence of a batch until it has no room left.

    Args:
        target: as in `SpeculativeDecoder`.
        proposer, rule: the parts.
        batch: the sequences, each with its prompt.
        hooks: what watches and changes it.
        statistics: counted here.
        pruned: tokens that count as out of vocabulary when they are accepted.
    """
    sequences = batch.sequences
    logprobs: list[list[float]] = [[] for _ in sequences]
    target.reset(len(sequences))
    proposer.reset(len(sequences))
    rooms = [s.room for s in sequences]
    while any(rooms):
        with Range("step", len(rooms) - rooms.count(0)):
            step = batch.step(rooms)
            decided, drafted = advance(target, proposer, rule, step, sequences, hooks)
            passes = list[tuple[tuple[Kind, ...], int]]()
            for b, (s, new) in enumerate(zip(sequences, decided.tokens, strict=True)):
                if rooms[b]:
                    ends = None if hooks.stop is None else partial(hooks.stop, b)
                    end: Kind = "resampled" if len(new) <= drafted[b] else "bonus"
                    kinds = kinds_of(new, end, pruned)[: s.extend(new, ends)]
                    passes.append((kinds, drafted[b]))
                    if hooks.logprobs is not None:
                        logprobs[b] += decided.logprobs[b][: len(kinds)]
                    if hooks.on_tokens is not None:
                        hooks.on_tokens(b, new[: len(kinds)], list(kinds))
            for (kinds_of_one, drafts), times in Counter(passes).items():
                statistics.count(kinds_of_one, drafts, times)
            # The newest token is decided but not read: the next pass begins with it.
            rooms = [s.room for s in sequences]
            read = [s.length - 1 if room else 0 for s, room in zip(sequences, rooms, strict=True)]
            with Range("cache update", len(read)):
                target.rollback(read)
                proposer.rollback(read)
    return Generation([s.new for s in sequences], statistics, logprobs)


def advance(
    target: CausalModel,
    proposer: Proposer,
    rule: Rule,
    step: Step,
    sequences: Sequence[Continuation],
    hooks: Hooks,
) -> tuple[Decided, list[int]]:
    """Decode one step: what every sequence gains, and how many drafts might have been accepted.

    The sequences are not extended yet, nor the models rolled back.
    """
    proposal = proposer.propose(sequences, step)
    reading = reading_of(proposal, sequences, step, target.vocabulary_size)
    nodes = sum(reading.nodes)
    with Range("target forward", nodes + len(step.room) - step.room.count(0)):
        output = reading.feed(target)
    logits, limits = output.logits, dict(step.limits)
    if (process := hooks.process) is not None:
        logits = reading.hooked(lambda rows: process(sequences, rows), logits)
    if (allowed := hooks.allowed) is not None:
        words = reading.hooked(lambda rows: allowed(sequences, rows.shape[1]), logits)
        limits["allowed"] = words.to(logits.device)
    with Range("verify", nodes):
        output = output._replace(logits=logits)
        decided = rule(output, reading.proposal, step, hooks.logprobs, **limits)
    mark("accepted", sum(map(len, decided.tokens)) - len(step.room))
    proposer.observe(reading.observed(output, decided))
    reading.settle(target, decided)
    return decided, reading.judged(decided)
