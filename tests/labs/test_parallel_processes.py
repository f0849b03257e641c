"""Targets in processes of their own: their tokens, their deaths, and that none outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from table_model import TableModel, random_table

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.labs.parallel_decoder import ParallelDecoder

from .process_targets import missing, refusing, target

ASKED: dict[str, Any] = {"max_new_tokens": 60, "seeds": [5, 6], "logprobs": "processed"}
PROMPTS = [[2, 4], [1]]


def drafter() -> TableModel:
    return TableModel(random_table(6, seed=1) + random_table(6, seed=2, spread=0.7), 6)


def test_targets_that_die_or_hang_change_no_token_and_without_any_it_says_so() -> None:
    serial = SpeculativeDecoder(target(), drafter(), draft_length=60)
    expected = serial.generate(PROMPTS, **ASKED)
    targets = [partial(target, dies_in=9), partial(target, hangs_in=7), target]
    with ParallelDecoder(targets, drafter(), lookahead=2, timeout=3.0) as decoder:
        found = decoder.generate(PROMPTS, **ASKED)
        assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
        left = list(decoder._workers._workers)
        assert 1 <= len(left) < len(targets)
        # One that does not read hangs nobody, be the message longer than its socket holds.
        os.kill(left[0].process.pid, signal.SIGSTOP)
        for worker in left[1:]:
            os.kill(worker.process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"no target worker is left.*-9"):
            decoder.generate([[2, 4] * 50_000], **ASKED | {"seeds": 1})
        with pytest.raises(RuntimeError, match="no target worker is left"):
            decoder.generate(PROMPTS, **ASKED)


@pytest.mark.ci
def test_what_a_target_refuses_is_an_error_of_the_prompt_and_it_lives_on() -> None:
    drafts = drafter()
    drafts.table[:, 5] = -torch.inf  # a draft that the target cannot read would be refused, too
    with ParallelDecoder([refusing] * 2, drafts, lookahead=1) as decoder:
        expected = decoder.generate([[2, 4]], max_new_tokens=9, temperature=0).tokens
        for _ in range(3):
            with pytest.raises(ValueError, match=r"got \[1, 5(, \d)*\]; reads ids below 5"):
                decoder.generate([[1, 5]], max_new_tokens=9)
        assert decoder.generate([[2, 4]], max_new_tokens=9, temperature=0).tokens == expected
        assert len(decoder._workers) == 2


@pytest.mark.ci
def test_closing_lets_processes_end_by_themselves() -> None:
    """What is killed leaks the semaphores of its libraries, of which Python then warns."""
    with ParallelDecoder([target], drafter()) as decoder:
        decoder.generate(PROMPTS, max_new_tokens=4, seeds=[5, 6])
        (worker,) = decoder._workers._workers
    assert worker.process.exitcode == 0


@pytest.mark.ci
def test_a_target_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        ParallelDecoder([missing], drafter())


@pytest.mark.ci
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_drafters(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the group; SIGKILL the drafter's alone."""
    script = tmp_path / "decode.py"
    script.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": f"{root}:{root}/tests/decoding"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that run in the background may ignore it, which their children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    workers = list(map(int, process.stdout.readline().split()))
    assert len(workers) == 2
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.kill()
    assert process.wait(60) != 0
    deadline = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "a worker outlives the drafter's process"
        time.sleep(0.05)


PROGRAM = """
from tests.labs.process_targets import target
from tests.labs.test_parallel_processes import drafter
from rdk_cuda.labs.parallel_decoder import ParallelDecoder

if __name__ == "__main__":
    decoder = ParallelDecoder([target, target], drafter(), lookahead=2)
    print(*(each.process.pid for each in decoder._workers._workers), flush=True)
    while True:
        decoder.generate([[2, 4]], max_new_tokens=1000, seeds=1)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
