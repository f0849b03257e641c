"""Clocks: one call at a time with nothing of its inputs in the cache, or with everything in it.

The cache is emptied by reading a buffer larger than it: what is written would still have to be
written back while the clock runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

MEBIBYTE = 2**20
BANDWIDTH_ROUNDS = 9
FEWEST_ROUNDS = 3
CALLS_IN_A_ROW = 20  # of one warm measurement on a GPU

Thunk = Callable[[], object]
Result = TypeVar("Result")


class Clock(Protocol):
    """How long a call takes, in seconds."""

    cache_bytes: int

    def cold(self, call: Thunk) -> float:
        """With an empty cache."""

    def warm(self, call: Thunk) -> float:
        """Directly after the same call."""


class CpuClock:
    """`time.perf_counter` around a call."""

    def __init__(self, cache_bytes: int | None = None) -> None:
        self.cache_bytes = last_level_cache() if cache_bytes is None else cache_bytes
        self.buffer = torch.ones(2 * self.cache_bytes // 4)

    def cold(self, call: Thunk) -> float:
        """With an empty cache."""
        self.buffer.sum()
        return self.warm(call)

    def warm(self, call: Thunk) -> float:
        """Without emptying the cache."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


class CudaClock:
    """CUDA events around a call, on the current stream.

    Reading the buffer takes longer than enqueueing what follows, so that the gaps between launches
    do not count, neither for us nor for anybody else.
    """

    def __init__(self) -> None:
        self.cache_bytes = torch.cuda.get_device_properties().L2_cache_size
        self.buffer = torch.ones(max(3 * self.cache_bytes, 1024 * MEBIBYTE) // 4, device="cuda")

    def cold(self, call: Thunk) -> float:
        """With an empty L2 cache."""
        self.buffer.sum()
        return self._elapsed(call)

    def warm(self, call: Thunk) -> float:
        """The time of one of many calls in a row, with the time between launches."""
        call()

        def calls() -> None:
            for _ in range(CALLS_IN_A_ROW):
                call()

        return self._elapsed(calls) / CALLS_IN_A_ROW

    def replayed(self, call: Thunk) -> float:
        """The time of one of many calls in a CUDA graph, where nothing waits for the CPU."""
        replay, _ = capture(lambda: [call() for _ in range(CALLS_IN_A_ROW)])
        replay()
        times = [self._elapsed(replay) for _ in range(BANDWIDTH_ROUNDS)]
        return statistics.median(times) / CALLS_IN_A_ROW

    def _elapsed(self, call: Thunk) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000


def capture(call: Callable[[], Result]) -> tuple[Thunk, Result]:
    """Replay of a CUDA graph of a call, made once before, and the results that a replay fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph.replay, results


def clock_of(device: torch.device, tiny: bool) -> Clock:
    """The clock of a device; a tiny one empties hardly any cache, to see only that all runs."""
    if device.type == "cuda":
        return CudaClock()
    return CpuClock(MEBIBYTE if tiny else None)


def bandwidths(clock: Clock, device: torch.device, size: int = 512 * MEBIBYTE) -> dict[str, float]:
    """Bytes per second of a large read (a sum) and of a large copy, which counts twice."""
    source = torch.ones(size // 4, device=device)
    target = torch.zeros_like(source)
    read = _median(clock, source.sum)
    copy = _median(clock, lambda: target.copy_(source))
    return {"read": size / read, "copy": 2 * size / copy}


def _median(clock: Clock, call: Callable[[], Tensor]) -> float:
    call()
    return statistics.median(clock.warm(call) for _ in range(BANDWIDTH_ROUNDS))


def last_level_cache() -> int:
    """Bytes of the largest cache of the first processor; 32 MiB if Linux does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=32 * MEBIBYTE)


def interleaved(
    clock: Clock,
    calls: dict[str, Callable[[int], object]],
    sets: int,
    *,
    seconds: float,
    repeats: int,
) -> dict[str, list[float]]:
    """Cold times of all calls, one of each in turn on the same inputs, and `warm` ones of "ours".

    Round r works on inputs r mod `sets`. It ends after `repeats` rounds or, but not before
    `FEWEST_ROUNDS`, after `seconds`.
    """
    for call in calls.values():
        call(0)
    times: dict[str, list[float]] = {name: [] for name in (*calls, "warm")}
    end = time.perf_counter() + seconds
    for turn in range(repeats):
        if turn >= FEWEST_ROUNDS and time.perf_counter() >= end:
            break
        for name, call in calls.items():
            on_inputs = partial(call, turn % sets)
            times[name].append(clock.cold(on_inputs))
            if name == "ours":
                times["warm"].append(clock.warm(on_inputs))
    return times
