"""What the worker counts is what was verified, by kind, and reaches the server's process.

The drafts that a grammar had cut, and that were put back, are no drafts to vLLM, and none here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.files import read_json
from rdk_cuda.functional import Method
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import metrics
from rdk_cuda.integrations.vllm.metrics import FOLDER, Counters


def counted(method: Method = "token", active: bool = True, sharded: bool = False) -> Counters:
    """Four requests by hand: the head keeps 0 to 3, and the arena names 6 or 7.

    The last has placeholders, as where vLLM fills a request up.
    """
    vocabulary = Vocabulary(range(4), target_size=8)
    affinity = Affinity.intersection(vocabulary)
    arena = DraftArena(affinity, slots=2, draft_length=3, dynamic_width=2)
    assert arena.rows.dynamic_tokens is not None
    arena.rows.dynamic_tokens[:] = torch.tensor([6, 7])
    counters = Counters(vocabulary, arena.device)
    counters.active = active
    counters.put_back(2)
    counters.count(
        arena,
        # Accepted 1, 6 and not 5; accepted 5; accepted 2 and 6, without distributions; none.
        drafts=torch.tensor([1, 6, 5, 5, 7, 2, 6, -1, -1]),
        layout=arena.layout([3, 2, 2, 2], [1, 0, -1, 1]),
        num_accepted=torch.tensor([2, 1, 2, 0]),
        method=method,
        sharded=sharded,
    )
    return counters


@pytest.mark.parametrize(
    ("method", "sharded"), [("token", False), ("token", True), ("block", False)]
)
def test_drafts_are_counted_by_kind(method: Method, sharded: bool) -> None:
    assert counted(method, sharded=sharded).read() == {
        "drafted_tokens.known": 5 - 2,
        "drafted_tokens.none": 2,
        "accepted_tokens.head": 1,
        "accepted_tokens.dynamic": 1,
        "accepted_tokens.virtual": 1,
        "accepted_tokens.none": 2,
        "verified_steps.token": int(method == "token"),
        "verified_steps.block": int(method == "block"),
        "sharded_steps.token": int(sharded),
        "put_back_tokens.grammar": 2,
    }


def test_nothing_is_counted_while_the_engine_warms_up() -> None:
    assert set(counted(active=False).read().values()) == {0}


def test_zeros_are_written_before_anything_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "made"))
    timer = Mock()
    monkeypatch.setattr(metrics, "threading", SimpleNamespace(Timer=timer))
    counters = counted(active=False)
    counters.publish()
    (_, write, given), _ = timer.call_args
    write(*given)
    (file,) = (tmp_path / "made").iterdir()
    assert set(read_json(file).values()) == {0}


def test_sums_are_written_at_most_every_few_seconds_and_also_if_no_step_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step waits neither for the disk nor for the device, whose sums are not read."""
    timer = Mock()
    monkeypatch.setattr(metrics, "threading", SimpleNamespace(Timer=timer))
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.delenv(FOLDER, raising=False)
    counters = counted()
    monkeypatch.setattr(counters, "_sums", torch.empty(0, device="meta"))
    counters.publish()  # nobody has named a folder
    assert not timer.called
    for folder, wait in ((tmp_path / "made", 0), (tmp_path / "a file" / "below it", 5)):
        monkeypatch.setenv(FOLDER, str(folder))
        monkeypatch.setattr(counters, "_changed", True)
        counters.publish()
        counters.publish()
        (found, write, given), _ = timer.call_args
        assert found == wait
        (tmp_path / "a file").touch()
        write(*given)  # is no error
        counters.publish()  # there is nothing new
    assert timer.call_count == 2
    (file,) = (tmp_path / "made").iterdir()
    assert read_json(file) == counters.read() == counted().read()
