"""The soak itself, in small: what it draws, what it notices, and that it can be interrupted."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import interruptible
from tests.tolerances import FALSE_ALARM

from .__main__ import (
    ROOT,
    Soak,
    StateError,
    run,
)
from .cases import CASES

pytestmark = pytest.mark.slow

TOKENS = 400_000


@pytest.fixture(scope="module")
def soak() -> Soak:
    soak = Soak(seed=0)
    run(soak, TOKENS, None)
    return soak


def test_right_samplers_pass_and_a_shared_coin_is_caught(soak: Soak) -> None:
    """The other control needs more tokens."""
    assert soak.total >= TOKENS
    rows = soak.rows()
    assert all(row["as_it_should_be"] for row in rows[: len(CASES)])
    coin = rows[len(CASES)]
    assert coin["as_it_should_be"]
    assert coin["p_values"]["first"] > FALSE_ALARM  # each token by itself looks right


def test_frequencies_that_belong_to_other_tokens_are_noticed(soak: Soak) -> None:
    noticed = set()
    for index, case in enumerate(CASES):
        for name, _ in Soak.compared(case):
            kept = soak.counts[index][name]
            if (case.kind, name) == ("first-order", "drafted"):
                continue  # q is nearly uniform
            if kept.sum() < 20 * kept.numel():
                continue  # so few tokens are not enough
            noticed.add(name)
            soak.counts[index][name] = kept.roll(1)
            assert soak.row(index)["p_values"][name] < FALSE_ALARM, (case.name, name)
            soak.counts[index][name] = kept
    assert noticed == {"drafted", "first", "pairs", "length"}


def test_a_soak_that_is_continued_draws_the_same(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    whole = Soak(seed=5)
    run(whole, 200_000, None)
    run(Soak(seed=5), 100_000, path)
    continued = Soak.load(path, seed=5)
    run(continued, 200_000, path)
    assert continued.total == whole.total
    for own, expected in zip(continued.counts, whole.counts, strict=True):
        for name in own:
            assert torch.equal(own[name], expected[name])
    with pytest.raises(StateError, match="has seed 5, not 6"):
        Soak.load(path, seed=6)


def test_an_interrupt_leaves_a_state_to_go_on_from(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    command = [sys.executable, "-m", "tests.soak", "--tokens", "1e12", "--state", str(path)]
    process = interruptible.start(command, ROOT)
    assert process.stderr is not None
    while "tokens" not in process.stderr.read(40):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaints.splitlines()[-1].startswith("interrupted after ")
    assert Soak.load(path, seed=0).total > 0
