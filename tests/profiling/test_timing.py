"""What is called in which order, and when it ends, on a clock that the test winds itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from profiling.bench import timing
from profiling.bench.measure import against
from profiling.bench.timing import FEWEST_ROUNDS, interleaved
from rdk_cuda.evaluation.timing import quantiles


class CountingClock:
    """Every cold call takes 2 s, every warm one 1 s."""

    cache_bytes = 0

    def __init__(self) -> None:
        self.now = 0.0

    def cold(self, call: Callable[[], object]) -> float:
        call()
        self.now += 2
        return 2.0

    def warm(self, call: Callable[[], object]) -> float:
        call()
        self.now += 1
        return 1.0


def rounds(monkeypatch: pytest.MonkeyPatch, **limits: float) -> tuple[list[str], dict]:
    clock, log = CountingClock(), []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    calls = {name: lambda index, name=name: log.append(f"{name} {index}") for name in ("ours", "x")}
    return log, interleaved(clock, calls, 2, **limits)  # type: ignore[arg-type]


def test_peers_take_turns_on_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    log, times = rounds(monkeypatch, seconds=1000, repeats=3)
    once = ["ours 0", "x 0"]  # before the clock runs
    turns = [["ours 0"] * 2 + ["x 0"], ["ours 1"] * 2 + ["x 1"], ["ours 0"] * 2 + ["x 0"]]
    assert log == once + [name for turn in turns for name in turn]
    assert times == {"ours": [2.0] * 3, "x": [2.0] * 3, "warm": [1.0] * 3}


def test_the_time_given_ends_the_rounds_but_never_the_first_three(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(rounds(monkeypatch, seconds=30, repeats=100)[1]["x"]) == 6  # 5 s a round
    assert len(rounds(monkeypatch, seconds=0.1, repeats=100)[1]["x"]) == FEWEST_ROUNDS == 3


def test_a_ratio_is_of_the_same_round_and_not_of_two_medians() -> None:
    ours, theirs = [1.0, 2.0, 4.0], [3.0, 6.0, 12.0]
    assert against(theirs, ours)["ratio"] == 3
    assert against(theirs[::-1], ours)["median_us"] == 6e6
    assert quantiles([float(n) for n in range(11)]) == (1, 5, 9)
