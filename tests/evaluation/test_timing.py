"""Whether times can be trusted: waiting for a processor is noticed, and so is what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rdk_cuda.recipes import timing
from rdk_cuda.recipes.timing import Watch

# Ourselves and as many others as are asked for, on one processor, for half a second.
CROWDED = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
others = []
for _ in range(int(sys.argv[1])):
    if (other := os.fork()) == 0:
        end = time.time() + 20
        while time.time() < end:
            pass
        os._exit(0)
    others.append(other)
from rdk_cuda.recipes.timing import Watch
with Watch() as watch:
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass
for other in others:
    os.kill(other, 9)
print(watch.waited, watch.doubt)
"""


def test_sharing_the_processor_with_others_is_noticed() -> None:
    command = [sys.executable, "-c", CROWDED, "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    waited, _, doubt = done.stdout.strip().partition(" ")
    if timing.waiting() is None:  # a kernel that does not count: the load average decides
        assert waited == "None"
    else:
        assert float(waited) > 0.3
        assert doubt.startswith("Others were at work on this machine (for ")
        assert doubt.endswith("we waited for a processor): do not trust the times.")


@pytest.mark.parametrize(
    ("waits", "doubted"), [([1.0, 1.0], False), ([1.0, 1.04], False), ([1.0, 1.5], True)]
)
def test_more_than_a_twentieth_of_the_time_is_too_much(
    monkeypatch: pytest.MonkeyPatch, waits: Sequence[float], doubted: bool
) -> None:
    clock, waited = iter([0.0, 1.0]), iter(waits)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(timing, "waiting", lambda: next(waited))
    with Watch() as watch:
        pass
    assert (watch.doubt is not None) == doubted
    assert watch.waited == pytest.approx(waits[1] - waits[0])


@pytest.mark.parametrize(("more", "doubted"), [(0.5, False), (1.5, True)])
def test_where_waiting_is_not_counted_the_load_average_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: float, doubted: bool
) -> None:
    monkeypatch.setattr(timing, "TASKS", tmp_path)
    load = torch.get_num_threads() + more
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    with Watch() as watch:
        pass
    assert watch.waited is None
    assert watch.doubt == (
        f"Others were at work on this machine (load {load:.1f}): do not trust the times."
        if doubted
        else None
    )
