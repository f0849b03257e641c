"""Speculation parallelism: the schedule decides when a token is known, never which one it is.

Chi-square of all continuations against their exact probabilities; fixed seeds. Over seeds each
`lossless` would fail falsely once in 10,000 times; each control is beyond 1e-6. Workers are
simulated here, with random delays, orders and deaths; `test_parallel_processes.py` has real ones.
"""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from table_model import (
    RejectedDrafts,
    TableModel,
    chi_square,
    continuations,
    joint,
    pruned,
    random_table,
)
from test_parts import AFFINITY, CAUGHT, DRAFTER, FALSE_ALARM, TARGET, VOCABULARY

import rdk_cuda
from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import DrafterChain, Output, SpeculativeDecoder
from rdk_cuda.labs.parallel_decoder import (
    ParallelDecoder,
    Plan,
    decoder,
    least_lookahead,
    parallel_speed,
    planned,
    run,
    serial_speed,
    workers,
)

from .simulated_workers import ConfusedWorkers, SimulatedWorkers, ThreadProcess, interrupted

SIZE, PROMPT = TARGET.size, [2, 4]


def target() -> TableModel:
    return TableModel(TARGET.table, SIZE)


def parallel(
    monkeypatch: pytest.MonkeyPatch, servers: int = 3, lookahead: int | None = 2, **options: Any
) -> ParallelDecoder:
    monkeypatch.setattr(decoder, "Workers", SimulatedWorkers)
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    return ParallelDecoder([target] * servers, drafter, AFFINITY, lookahead=lookahead, **options)


@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("lookahead", [1, 2, 7])
def test_pieces_are_one_verify_to_the_bit(
    servers: int, lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serial replay, in which a run is one step of the ordinary decoder."""
    options: dict[str, Any] = {
        "dynamic_tokens": RecentTokens(VOCABULARY, 2, 4),
        "full_head": ((DRAFTER.T + 1).contiguous(), None),
        "vocabulary": VOCABULARY,
    }
    prompts, most = [PROMPT, [1], [0, 3, 5]], [60, 1, 40]
    asked: dict[str, Any] = {
        "max_new_tokens": most,
        "temperature": [1.0, 0.0, 0.9],
        "top_p": 0.95,
        "seeds": [3, 4, 5],
        "eos": [[], [], [2]],
        "logprobs": "processed",
    }
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    serial = SpeculativeDecoder(target(), drafter, AFFINITY, draft_length=60, **options)
    expected = serial.generate(prompts, **asked)
    ours = parallel(monkeypatch, servers, lookahead, **options)
    told: list[tuple[int, int, str]] = []
    found = ours.generate(
        prompts,
        **asked,
        on_tokens=lambda b, *new: told.extend((b, *each) for each in zip(*new, strict=True)),
    )
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    assert [[t for own, t, _ in told if own == b] for b in range(3)] == found.tokens
    counted, replayed = found.statistics, expected.statistics
    assert sum(counted.accepted) == sum(replayed.accepted)
    assert (counted.resampled, counted.bonus) == (replayed.resampled, replayed.bonus)
    assert counted.out_of_vocabulary == replayed.out_of_vocabulary > 0
    workers: Any = ours._workers
    assert workers.lost > 0


def test_behind_a_token_that_the_drafter_cannot_read_nothing_is_drafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fewer(TableModel):
        readable = SIZE - 1

    monkeypatch.setattr(decoder, "Workers", SimulatedWorkers)
    affinity = Affinity.intersection(Vocabulary(range(SIZE - 1), SIZE))
    drafter = Fewer(DRAFTER[:, : SIZE - 1], SIZE)
    ours = ParallelDecoder([target] * 3, drafter, affinity, lookahead=2)
    for prompt, drafts in (([SIZE - 1, 2], False), ([1, 2], True)):
        result = ours.generate([prompt], max_new_tokens=50, seeds=1)
        assert any(result.statistics.drafted) == drafts
        assert SIZE - 1 in result.tokens[0]
        assert SIZE - 1 not in drafter.sequences[0]


# Each state has a likely token. The drafter knows none, but likes what it has drafted before, and
# its first draft is mostly rejected.
PEAKED = TableModel(1.5 * torch.eye(4).repeat(4, 1) + random_table(4, seed=1, spread=0.3), 4)
EVEN, LIKED = torch.zeros(16, 4), (torch.ones(4, 16), None)
EVEN[2 * 4 + 3, 3] = -4.0


def p_value(
    monkeypatch: pytest.MonkeyPatch, samples: int, simulated: type[SimulatedWorkers]
) -> float:
    """Of the first two of four tokens: a position has to be drafted twice to matter."""
    monkeypatch.setattr(decoder, "Workers", simulated)
    ours = ParallelDecoder(
        [lambda: TableModel(PEAKED.table, 4)] * 3,
        TableModel(EVEN, 4),
        lookahead=1,
        dynamic_tokens=RejectedDrafts(len(PROMPT)),
        full_head=LIKED,
    )
    workers: Any = ours._workers
    workers.answer = 0.1  # so that it drafts far ahead

    counts = continuations(lambda: ours, [2, 3], 2, samples, further=2)
    assert workers.lost > samples / 10 < workers.stale
    return chi_square(counts, joint(PEAKED, [2, 3], 2))


def test_delays_cancellations_and_deaths_are_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    assert p_value(monkeypatch, 10_000, SimulatedWorkers) > FALSE_ALARM


def test_control_the_same_key_after_a_rejection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdk_cuda._ops, "step_keys", lambda seeds, positions: seeds)
    monkeypatch.setattr(DrafterChain, "_rows_for", lambda *step: None)  # keys are made in Python
    assert p_value(monkeypatch, 10_000, SimulatedWorkers) < CAUGHT


def test_control_answers_to_a_cancelled_run_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert p_value(monkeypatch, 10_000, ConfusedWorkers) < CAUGHT


@pytest.mark.parametrize(
    ("cost", "acceptance", "serial", "parallels"),
    [
        (0.1, 0.8, 2.47, {1: 2.64, 2: 3.13, 4: 3.35, 7: 3.46}),
        (0.2, 0.9, 2.37, {1: 3.13, 2: 3.34, 4: 3.45, 7: 3.57}),
        (0.1, 0.5, 1.46, {1: 1.33, 2: 1.59, 4: 1.71, 7: 1.76}),
    ],
)
def test_speeds_in_closed_form_and_the_plan_that_follows(
    cost: float, acceptance: float, serial: float, parallels: dict[int, float]
) -> None:
    speeds = {k: serial_speed(cost, acceptance, k) for k in range(32)}
    assert round(max(speeds.values()), 2) == serial
    for servers, speed in parallels.items():
        lookahead = least_lookahead(cost, servers)
        assert round(parallel_speed(cost, acceptance, lookahead), 2) == speed
        best = Plan(0, max(speeds, key=speeds.__getitem__))
        assert planned(cost, acceptance, servers) == (Plan(lookahead) if speed > serial else best)


@pytest.mark.parametrize(("servers", "plan"), [(1, Plan(0, 2)), (3, Plan(4))])
def test_where_targets_are_too_few_it_drafts_and_verifies_in_turn(
    servers: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = parallel(monkeypatch, servers=servers, lookahead=None)
    ours.generate([PROMPT], max_new_tokens=1, seeds=1)
    ours._draft_times.extend([0.1] * 64)
    ours._accepted.extend([True, False] * 128)
    ours.generate([PROMPT], max_new_tokens=1, seeds=1)
    assert ours.plan == plan


def slow(dies_in: int = 0) -> TableModel:
    """So slow that an answer that nobody waits for comes late; its worker may die in a pass."""

    def late(*given: Any) -> Output:
        time.sleep(5e-4)
        if model.passes + 1 == dies_in:
            raise ArithmeticError
        return feed(*given)

    model = target()
    feed, model.feed = model.feed, late  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("event", "turns"), [("line", [1]), pytest.param("opcode", [1, 2, 5], marks=pytest.mark.night)]
)
def test_after_ctrl_c_anywhere_the_next_call_is_right_or_the_decoder_closed(
    event: str, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real workers' code, in threads. One dies; closing is interrupted, too."""
    threads = SimpleNamespace(Process=ThreadProcess)
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda _: threads)
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)  # it is for main threads
    monkeypatch.setattr(workers, "_TOKENS", 3)  # so that messages have parts
    files = [each.__file__ for each in (run, decoder, workers)]
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    serial = SpeculativeDecoder(target(), drafter, AFFINITY, draft_length=9)
    asked: dict[str, Any] = {"max_new_tokens": 9, "seeds": [3], "logprobs": "processed"}
    tokens, _, logprobs = serial.generate([PROMPT * 4], **asked)

    def once(at: Any = None, turn: int = 1) -> Any:
        targets = [slow, partial(slow, dies_in=3)]
        with ParallelDecoder(targets, drafter, AFFINITY, lookahead=2, timeout=20) as ours:
            first = partial(ours.generate, [[1, 3, 5, 0, 2]], max_new_tokens=7, seeds=[8])
            reached = interrupted(lambda: (first(), ours.close()), files, event, at, turn)
            right = at is None or at[0].co_name in ("close", "_end") or reached[at] < turn
            try:
                found, _, scores = ours.generate([PROMPT * 4], **asked)
            except RuntimeError as error:
                right = right and "is left: the decoder was closed" in str(error)
            else:
                right = (found, scores) == (tokens, logprobs)
            assert right, at
        return reached

    places = once()
    assert len(places) > 80
    for at in places:
        for turn in turns:
            if places[at] >= turn:
                once(at, turn)


@pytest.mark.parametrize("seconds", [float("nan"), 0, -1, float("inf"), 1e9, "x", None])
@pytest.mark.parametrize("name", ["timeout", "start_timeout"])
def test_a_timeout_that_is_no_time_is_refused_before_a_process_starts(
    name: str, seconds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.multiprocessing, "get_context", None)
    with pytest.raises(ValueError, match=f"ParallelDecoder: {name} is .*; needs seconds, more"):
        ParallelDecoder([target], TableModel(TARGET.table, SIZE), **{name: seconds})
