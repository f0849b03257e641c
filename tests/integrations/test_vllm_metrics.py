"""What the worker counts is what was verified, by kind, and reaches the server's process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm.metrics import FOLDER, Counters


def counted(method: str = "token", active: bool = True, sharded: bool = False) -> Counters:
    """Three requests and padding, by hand: the head keeps 0 to 3, and the arena names 6 or 7."""
    vocabulary = Vocabulary(range(4), target_size=8)
    affinity = Affinity.intersection(vocabulary)
    arena = DraftArena(affinity, slots=2, draft_length=3, dynamic_width=2)
    assert arena.dynamic_tokens is not None
    arena.dynamic_tokens[:] = torch.tensor([6, 7])
    counters = Counters(vocabulary, arena.device)
    counters.active = active
    counters.count(
        arena,
        # Accepted 1, 6 and not 5; accepted 5; accepted 2 and 6, without distributions; padding.
        drafts=torch.tensor([1, 6, 5, 5, 7, 2, 6, 3, 3]),
        offsets=torch.tensor([0, 3, 5, 7], dtype=torch.int32),
        slots=torch.tensor([1, 0, -1]),
        num_accepted=torch.tensor([2, 1, 2]),
        method=method,  # type: ignore[arg-type]
        sharded=sharded,
    )
    counters.put_back(2)
    return counters


@pytest.mark.parametrize(
    ("method", "sharded"), [("token", False), ("token", True), ("block", False)]
)
def test_drafts_are_counted_by_kind(method: str, sharded: bool) -> None:
    assert counted(method, sharded=sharded).read() == {
        "drafted_tokens.known": 5,
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


def test_sums_are_written_at_most_every_few_seconds_and_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    counters = counted()
    counters.publish(idle=True)  # nobody has named a folder
    monkeypatch.setenv(FOLDER, str(tmp_path / "made"))
    counters.publish(idle=False)
    (file,) = (tmp_path / "made").iterdir()
    file.unlink()
    counters.publish(idle=False)
    assert not file.exists()
    counters.publish(idle=True)
    assert file.exists()
    monkeypatch.setenv(FOLDER, str(file / "below a file"))
    counters.publish(idle=True)  # is no error
