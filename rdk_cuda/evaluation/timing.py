"""Whether measured times can be trusted: their spread, other processes, and contradictions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch

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
    """Why a measured pass of the target is impossible, in a sentence; None if it is not.

    A pass over several tokens takes at least as long as one over a single token, of which
    `pass_time` is a multiple. If the times say otherwise by more than `TOLERANCE`, something else
    changed while they were taken.
    """
    if pass_time >= 1 - TOLERANCE:
        return None
    return (
        f"a pass of the target over several tokens took {pass_time:.2f} times as long as one over "
        "a single token, which cannot be"
    )


def others_at_work(load: float, threads: int) -> str | None:
    """A warning, if the load average says that more than our own threads want to run."""
    return None if load <= threads + 1 else warning(f"load {load:.1f}")


def warning(reason: str) -> str:
    """What is printed next to times that others disturbed."""
    return f"Others were at work on this machine ({reason}): do not trust the times."


class Watch:
    """Notices other processes while times are measured: `with Watch() as watch: ...`.

    Linux counts how long a thread could have run but had to wait for a processor. That says more
    than the load average, which lags and includes our own work. The load average is used only if
    the kernel does not count.

    Attributes:
        waited: how long threads waited, as a share of the time; None if it is not counted.
        doubt: a warning, if the times should not be trusted.
    """

    waited: float | None = None
    doubt: str | None = None

    def __enter__(self) -> Watch:
        """Begin to watch."""
        self.begin, self.before = time.perf_counter(), waiting()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Judge."""
        after, elapsed = waiting(), time.perf_counter() - self.begin
        if self.before is None or after is None:
            self.doubt = others_at_work(os.getloadavg()[0], torch.get_num_threads())
            return
        self.waited = max(0.0, after - self.before) / max(elapsed, 1e-9)
        if self.waited > WAITED:
            share = min(1.0, self.waited)  # several threads may wait at once
            self.doubt = warning(f"for {share:.0%} of the time we waited for a processor")


def waiting() -> float | None:
    """Seconds that this process's threads have waited for a processor so far, or None."""
    nanoseconds = []
    for file in TASKS.glob("*/schedstat"):
        try:
            nanoseconds.append(int(file.read_text().split()[1]))
        except (OSError, ValueError, IndexError):  # of a thread that ended
            continue
    return sum(nanoseconds) / 1e9 if nanoseconds else None
