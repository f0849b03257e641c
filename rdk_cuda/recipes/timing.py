"""From acceptance to speed: tokens for each pass of the target, the head's cost, the speed-up.

The formulas are those of Leviathan et al. 2023, section 3, without the assumption that all drafts
of a step have the same acceptance rate: the rates are those of consecutive positions.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..drafter import PrunedDrafter

ROUNDS = 15
TOLERANCE = 0.1  # of a ratio of two times on a quiet machine
WAITED = 0.05  # share of the time; a quiet machine's own services take less
TASKS = Path("/proc/self/task")


class Spread(NamedTuple):
    """The median over rounds, with the ends of the middle 80 %."""

    value: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Of one figure's values, one from each round; the quantiles are interpolated."""
    at = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64, device="cpu")
    return Spread(*torch.tensor(values, dtype=at.dtype, device="cpu").quantile(at).tolist())


def contradiction(pass_time: float) -> str | None:
    """Why a pass over several tokens cannot take this multiple of one over a single token."""
    if pass_time >= 1 - TOLERANCE:
        return None
    return (
        f"a pass of the target over several tokens took {pass_time:.2f} times as long as one over "
        "a single token, which cannot be"
    )


def others_at_work(load: float, threads: int) -> str | None:
    return None if load <= threads + 1 else warning(f"load {load:.1f}")


def warning(reason: str) -> str:
    return f"Others were at work on this machine ({reason}): do not trust the times."


class Watch:
    """Notices other processes while times are measured: `with Watch() as watch: ...`.

    Linux counts how long a thread could have run but had to wait for a processor. The load average,
    which lags and includes our own work, is used only if the kernel does not count.

    Attributes:
        waited: how long threads waited, as a share of the time; None if it is not counted.
        doubt: a warning, if the times should not be trusted.
    """

    waited: float | None = None
    doubt: str | None = None

    def __enter__(self) -> Watch:
        self.begin, self.before = time.perf_counter(), waiting()
        return self

    def __exit__(self, *raised: object) -> None:
        after, elapsed = waiting(), time.perf_counter() - self.begin
        if self.before is None or after is None:
            self.doubt = others_at_work(os.getloadavg()[0], torch.get_num_threads())
            return
        self.waited = max(0.0, after - self.before) / max(elapsed, 1e-9)
        if self.waited > WAITED:
            share = min(1.0, self.waited)  # several threads may wait at once
            self.doubt = warning(f"for {share:.0%} of the time we waited for a processor")


def waiting() -> float | None:
    nanoseconds = []
    for file in TASKS.glob("*/schedstat"):
        try:
            nanoseconds.append(int(file.read_text().split()[1]))
        except (OSError, ValueError, IndexError):  # of a thread that ended
            continue
    return sum(nanoseconds) / 1e9 if nanoseconds else None


def expected_accepted_length(rates: Tensor, draft_length: int) -> Tensor:
    """The mean number of K drafts that are accepted, for a draft from each position of a text.

    `sum_{k=1..K} prod_{j<k} alpha_{t+j}`: the k-th draft counts if it and all before it are
    accepted. The rates are measured along the text itself, as if accepted drafts were distributed
    like the target's tokens, which is exact if `min(p, q)` is proportional to p.

    Args:
        rates: `[..., positions]` floats of consecutive positions; 0 and 1 if drafting is greedy.
        draft_length: K, 1 to the number of positions.

    Returns:
        `[..., positions - K + 1]`, in the dtype of the rates, from 0 to K.

    Example:
        >>> expected_accepted_length(torch.tensor([0.5, 0.5, 1.0]), draft_length=2)
        tensor([0.7500, 1.0000])
    """
    positions = rates.shape[-1] if rates.dim() else 0
    if not 1 <= draft_length <= positions or not rates.is_floating_point():
        raise ValueError(
            f"expected_accepted_length: draft_length is {draft_length} and rates {rates.dtype} of "
            f"{positions} positions; needs floating-point rates of at least draft_length >= 1"
        )
    return rates.unfold(-1, draft_length, 1).cumprod(-1).sum(-1)


@dataclass(frozen=True)
class HeadCost:
    """The cost of a drafter's LM head for a position: bytes read, and operations.

    Attributes:
        rows: V_t for a full head, V_hot for a pruned one, V_hot + K with virtual tokens.
        hidden_size: d.
        bytes_each: of one weight, 2 for bfloat16.
        dynamic_columns: gathered rows, on average.
        screen_bytes: of screens, one byte a weight.

    Example:
        >>> full = HeadCost(rows=128256, hidden_size=4096)
        >>> small = HeadCost(rows=32064 + 64, hidden_size=4096, dynamic_columns=64)
        >>> full.bytes_read(), small.bytes_read()
        (1050673152.0, 263716864.0)
        >>> f"{small.flops / full.flops:.1%}"
        '25.1%'
    """

    rows: int
    hidden_size: int
    bytes_each: int = 2
    dynamic_columns: float = 0.0
    screen_bytes: int = 0

    @classmethod
    def of(cls, drafter: PrunedDrafter, dynamic_columns: float, bytes_each: int) -> HeadCost:
        """Return the cost of a drafter's small head, with so many dynamic columns on average."""
        rows, width = drafter.weight.shape
        return cls(rows, width, bytes_each, dynamic_columns, drafter.screen_bytes)

    def bytes_read(self) -> float:
        """Bytes that a draft reads."""
        row = self.bytes_each * self.hidden_size
        return float(row * self.rows + self.screen_bytes + row * self.dynamic_columns)

    @property
    def flops(self) -> float:
        """Operations of a draft, products and sums."""
        rows = (self.rows + self.dynamic_columns) * self.hidden_size
        return 2 * (rows + self.screen_bytes)


@dataclass(frozen=True)
class Times:
    """Measured times in seconds, for one sequence.

    Attributes:
        draft_length: K.
        target_alone: the target's pass over one token.
        target_verify: its pass over K + 1 tokens.
        drafter_body: the drafter's pass over one token, without its head.
        head_weight: the drafter's head, for each weight that it reads.
        rounds: the measurements that these are the medians of, if there were several.
        doubt: a warning, if other processes were running at the time.

    Example:
        >>> times = Times(4, 10.0, 11.0, drafter_body=0.25, head_weight=1e-3)
        >>> head = HeadCost(rows=100, hidden_size=10)
        >>> times.draft_time(head), times.speed_up(3.0, head)
        (1.25, 2.5)
    """

    draft_length: int
    target_alone: float
    target_verify: float
    drafter_body: float
    head_weight: float
    rounds: tuple[Times, ...] = field(default=(), repr=False, compare=False)
    doubt: str | None = field(default=None, repr=False, compare=False)

    @property
    def contradiction(self) -> str | None:
        """Why no speed-up can be predicted from these times, in a sentence; None if one can."""
        each = [one.target_verify / one.target_alone for one in self.rounds or (self,)]
        return contradiction(statistics.median(each))

    def draft_time(self, head: HeadCost) -> float:
        """Seconds of one draft with this head."""
        weights = head.bytes_read() / head.bytes_each
        return self.drafter_body + self.head_weight * weights

    def speed_up(self, accepted_length: float, head: HeadCost) -> float:
        """Tokens a second, relative to the target alone; the median, if there are rounds.

        A step yields its accepted drafts and one token more (theorem 3.8 of Leviathan et al.).
        """
        if self.rounds:
            return self.speed_up_spread(accepted_length, head).value
        step = self.target_verify + self.draft_length * self.draft_time(head)
        return (1 + accepted_length) * self.target_alone / step

    def speed_up_spread(self, accepted_length: float, head: HeadCost) -> Spread:
        """The same with its spread over the rounds; without rounds the ends are NaN."""
        if not self.rounds:
            return Spread(self.speed_up(accepted_length, head), math.nan, math.nan)
        return spread([one.speed_up(accepted_length, head) for one in self.rounds])


def predicted_speed_up(
    times: Times | None, accepted_length: float, cost: HeadCost
) -> dict[str, float | str | None]:
    """With its spread and any warning; none if the times contradict each other."""
    if times is None:
        return {}
    if times.contradiction is not None:
        return {"doubt": f"No speed-up is predicted: {times.contradiction}. Measure again."}
    value, low, high = times.speed_up_spread(accepted_length, cost)
    figures = {"speed_up": value, "speed_up_low": low, "speed_up_high": high}
    return {**figures, "doubt": times.doubt}


def measure_times(
    draft_length: int,
    *,
    target: Callable[[int], object],
    drafter_body: Callable[[], object],
    head: Callable[[], object],
    head_weights: int,
    seconds: float = 0.0,
) -> Times:
    """The median time of each part, measured in turn after a warm-up round.

    Each callable must wait for its result: on a GPU it ends with a synchronisation. `target` is its
    pass over a number of tokens, `drafter_body` the drafter's over one, without its head.
    """
    passes = (partial(target, count) for count in (1, draft_length + 1))
    calls: list[Callable[[], object]] = [*passes, drafter_body, head]
    for call in calls:
        call()
    measured: list[list[float]] = []
    end = time.perf_counter() + seconds
    with Watch() as watch:
        while len(measured) < ROUNDS or time.perf_counter() < end:
            *parts, full_head = map(timed, calls)
            measured.append([*parts, full_head / head_weights])
    rounds = tuple(Times(draft_length, a, v, b, w) for a, v, b, w in measured)
    alone, verify, body, weight = map(statistics.median, zip(*measured, strict=True))
    return Times(draft_length, alone, verify, body, weight, rounds=rounds, doubt=watch.doubt)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure_model_times(
    target: Any,
    drafter: Any,
    context: Tensor,
    draft_length: int,
    *,
    drafter_context: Tensor | None = None,
    seconds: float = 0.0,
) -> Times:
    """`measure_times` of two Hugging Face causal language models, behind a context `[L]` of ids.

    `drafter_context` is the drafter's, if it has a tokenizer of its own.
    """
    own = context if drafter_context is None else drafter_context
    head = drafter.get_output_embeddings()
    hidden = torch.zeros(1, head.weight.shape[1], dtype=head.weight.dtype, device=drafter.device)

    def full_head() -> None:
        torch.nn.functional.linear(hidden, head.weight)
        finish(drafter)

    with torch.no_grad():
        verify, body = cached_pass(target, context), cached_pass(drafter.base_model, own)
        return measure_times(
            draft_length,
            target=verify,
            drafter_body=lambda: body(1),
            head=full_head,
            head_weights=head.weight.numel(),
            seconds=seconds,
        )


def cached_pass(model: Any, context: Tensor) -> Callable[[int], None]:
    """The model's pass over a number of further tokens, from the same cache each time.

    Keys and values are only ever replaced, so a shallow copy keeps them.
    """
    from transformers import DynamicCache

    from ..integrations.huggingface.library import cache_argument

    context = context.to(model.device).view(1, -1)
    name, cache = cache_argument(model), DynamicCache(config=model.config)
    model(input_ids=context, use_cache=True, **{name: cache})

    def run(tokens: int) -> None:
        own = copy.copy(cache)
        own.layers = [copy.copy(layer) for layer in cache.layers]
        model(input_ids=context[:, -1:].expand(-1, tokens), use_cache=True, **{name: own})
        finish(model)

    return run


def finish(model: Any) -> None:
    places = set(getattr(model, "hf_device_map", {"": model.device}).values())
    for device in map(torch.device, places - {"disk"}):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
