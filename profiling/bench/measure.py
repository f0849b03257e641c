"""From a case to its row: inputs, times of our operators and of others, bytes, floor.

A row has what all rows have (../results.py), and

    case                        operator and shape in one string
    operator ... dtype          the attributes of `cases.Case`, null where an operator has none,
                                and rank and nnz of its affinity
    accepted_mean               accepted drafts of a sequence
    visited_rows                target rows up to the first rejections, mean of a call
    bytes_visited, bytes_all    by formula (traffic.py), with those rows and with all target rows
    bytes                       the one of them that the strategy used has to read
    bandwidth, bandwidth_gb_s   measured in the run: "read" (a sum) or "copy" (counted twice)
    floor_us                    bytes over bandwidth
    median_us, p10_us, p90_us   cold: nothing in the last-level cache
    rounds, share_of_floor      how many of them; floor over time, median of the rounds
    warm_us, graph_us           directly after the same call; in a CUDA graph (batch 1)
    peak_mb                     of OVERLAP: the most that a call allocates, also of each peer
    peers                       by name: median_us, p10_us, p90_us, and `ratio`, their time over
                                ours, median of the rounds; or `skipped`, why not. On a GPU ours
                                launched early is among them
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from rdk_cuda import _C
from rdk_cuda.recipes.timing import spread

from ..commands import one_line
from ..machine import multiprocessors, now
from ..peers.memory import peak_bytes
from .cases import OVERLAP, Case
from .timing import Clock, CudaClock, interleaved
from .traffic import traffic, visited_rows
from .workloads import Call, Workload, build

COMPILED = "compiled"
EARLY = "early"
PEERS = ("eager", "sparse", EARLY, COMPILED)


@dataclass
class Bench:
    """What stays the same through a run.

    Attributes:
        bandwidths: bytes per second, of a "read" and of a "copy".
        peers: which of `PEERS` to measure.
        seconds, repeats: for the rounds of one case, whichever ends first.
        run: the columns that all rows of the run have in common.
    """

    device: torch.device
    clock: Clock
    bandwidths: dict[str, float]
    peers: Sequence[str]
    seconds: float
    repeats: int
    run: dict[str, Any]
    compiler: Compiler = field(init=False)

    def __post_init__(self) -> None:
        self.compiler = Compiler()

    def row(self, case: Case) -> dict[str, Any]:
        """Measure a case. Raises torch.OutOfMemoryError where its inputs do not fit."""
        workload = build(case, self.device)
        calls, skipped = self._calls(workload)
        times = interleaved(
            self.clock, calls, workload.sets, seconds=self.seconds, repeats=self.repeats
        )
        ours = times["ours"]
        moved = self._bytes(workload)
        mostly = "copy" if self.device.type == "cuda" or case.operator == "redistribute" else "read"
        floors = [amount / self.bandwidths[mostly] for amount in moved["by_set"]]
        shares = [floors[turn % workload.sets] / time for turn, time in enumerate(ours)]
        graph = None
        if isinstance(self.clock, CudaClock) and case.batch == 1:
            graph = 1e6 * self.clock.replayed(lambda: workload.ours(0))
        peers = {name: against(times[name], ours) for name in calls if name != "ours"}
        if case.operator == OVERLAP:
            for name in peers:
                peers[name]["peak_mb"] = peak_bytes(partial(calls[name], 0), self.device) / 1e6
        affinity, accepted = workload.affinity, sum(workload.accepted, ())
        return {
            "case": case.name,
            "operator": case.operator,
            "sampler": case.affinity,
            "acceptance": case.acceptance,
            "stats": case.stats if case.operator == "verify" else None,
            "target_size": case.target_size,
            "draft_size": case.draft_size or None,
            "batch": case.batch,
            "draft_length": case.draft_length or None,
            "columns": case.columns,
            "hidden_size": case.hidden_size or None,
            "rank": affinity.rank if affinity else None,
            "nnz": affinity.nnz if affinity else None,
            "dtype": case.dtype,
            "target_dtype": case.target_dtype if case.verifies else None,
            "temperature": case.temperature,
            "accepted_mean": fmean(accepted) if accepted else None,
            "visited_rows": moved["rows"],
            "bytes_visited": moved["visited"],
            "bytes_all": moved["all"],
            "bytes": fmean(moved["by_set"]),
            "bandwidth": mostly,
            "bandwidth_gb_s": self.bandwidths[mostly] / 1e9,
            "floor_us": 1e6 * fmean(floors),
            **in_microseconds(ours),
            "rounds": len(ours),
            "share_of_floor": spread(shares).value,
            "warm_us": 1e6 * spread(times["warm"]).value,
            "graph_us": graph,
            "peak_mb": self._peak(workload),
            "peers": peers | {name: {"skipped": reason} for name, reason in skipped.items()},
            "date": now(),
            "load": os.getloadavg()[0],
            **self.run,
        }

    def alternately(self, calls: dict[str, Call]) -> dict[str, Any]:
        """What a row has of "ours" and of others that do not count bytes: "untruncated" ones."""
        times = interleaved(self.clock, calls, 1, seconds=self.seconds, repeats=self.repeats)
        ours = times["ours"]
        shares = [mine / theirs for mine, theirs in zip(ours, times["untruncated"], strict=True)]
        return {
            **in_microseconds(ours),
            "rounds": len(ours),
            "warm_us": 1e6 * spread(times["warm"]).value,
            "times_untruncated": spread(shares).value,
            "peers": {name: against(times[name], ours) for name in calls if name != "ours"},
            "date": now(),
            "load": os.getloadavg()[0],
            **self.run,
        }

    def _calls(self, workload: Workload) -> tuple[dict[str, Call], dict[str, str]]:
        """The calls that can be timed, ours first, and why the others cannot."""
        peers = dict(workload.peers)
        if self.device.type == "cuda":
            peers[EARLY] = partial(launched_early, workload.ours)
        wanted = {name: call for name, call in peers.items() if name in self.peers}
        skipped = {}
        if COMPILED in self.peers:
            wanted[COMPILED] = self.compiler.compiled(workload)
        else:
            skipped[COMPILED] = f"left out; --peers {COMPILED} includes it, for its time to compile"
        calls = {"ours": workload.ours}
        for name, call in wanted.items():
            try:
                call(0)
                calls[name] = call
            except torch.OutOfMemoryError:
                skipped[name] = "out of memory"
            except Exception as error:  # a compiler may raise anything
                skipped[name] = one_line(error)
        return calls, skipped

    def _bytes(self, workload: Workload) -> dict[str, Any]:
        """Bytes with the visited rows and with all rows, and those that the floor counts."""
        case, affinity = workload.case, workload.affinity
        nnz, rank = (affinity.nnz, affinity.rank) if affinity else (0, 0)
        is_biased = affinity is not None and affinity.is_biased
        bytes_of = partial(traffic, case, nnz, rank, is_biased=is_biased)
        everything = bytes_of()
        visited = [bytes_of(each) for each in workload.accepted]
        rows = [visited_rows(case, each) for each in workload.accepted]
        by_set = [everything] * workload.sets if self._reads_all_rows(case) else visited
        return {
            "all": everything,
            "visited": fmean(visited) if visited else everything,
            "rows": fmean(rows) if rows else None,
            "by_set": by_set or [everything] * workload.sets,
        }

    def _peak(self, workload: Workload) -> float | None:
        if workload.case.operator != OVERLAP:
            return None
        return peak_bytes(partial(workload.ours, 0), self.device) / 1e6

    def _reads_all_rows(self, case: Case) -> bool:
        """Whether `verify` splits its few rows over the GPU (DESIGN section 6)."""
        count = multiprocessors(self.device)
        return count is not None and case.batch < count


class Compiler:
    """torch.compile, for the shapes of one case at a time."""

    def __init__(self) -> None:
        self.shapes: Case | None = None
        self.function: Callable[..., object] | None = None

    def compiled(self, workload: Workload) -> Call:
        """The eager function of a workload, to be compiled by its first call."""
        shapes = replace(workload.case, acceptance=None)
        function, arguments = workload.compilable
        if shapes != self.shapes:
            # Beyond some number of shapes, torch.compile would quietly run the function as it is.
            torch.compiler.reset()
            self.shapes, self.function = shapes, torch.compile(function, dynamic=False)
        assert self.function is not None
        compiled = self.function
        return lambda index: workload.then(compiled(*arguments[index]))


def launched_early(call: Call, index: int) -> object:
    """Make a call whose launches may begin early."""
    name = "RDK_EARLY_LAUNCH"
    before = os.environ.get(name, "")
    os.environ[name] = "1"
    _C.forget_environment()
    try:
        return call(index)
    finally:
        os.environ[name] = before
        _C.forget_environment()


def against(times: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """A peer's times, and the median over rounds of its time divided by ours."""
    ratios = [theirs / mine for theirs, mine in zip(times, ours, strict=True)]
    return {**in_microseconds(times), "ratio": spread(ratios).value}


def in_microseconds(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the range of the middle 80 %."""
    median, p10, p90 = spread(seconds)
    return {"median_us": 1e6 * median, "p10_us": 1e6 * p10, "p90_us": 1e6 * p90}
