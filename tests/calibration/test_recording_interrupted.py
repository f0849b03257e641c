"""An interrupted or killed recording goes on to the same bits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from rdk_cuda.decoding.models import Reading
from rdk_cuda.recipes.shards import SUMS, RecordingError
from tests import interruptible

from .bigram_recordings import (
    READS,
    Window,
    assert_same_bits,
    read,
    recorded,
    windows_of,
)


class StopReading(Exception):  # noqa: N818
    pass


def _reads_before_stopping(count: int):
    def stopping(ids: torch.Tensor) -> Reading:
        nonlocal count
        if ids.numel() > 2:
            count -= 1
            if count < 0:
                raise StopReading
        return read(ids)

    return stopping


@pytest.mark.parametrize("stops", [(0,), (4, 2), (6,)])
def test_an_interrupted_recording_goes_on_to_the_same_bits(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    state = tmp_path / "state"
    again = {"samples": 20, "state": state}
    for reads in stops:
        with pytest.raises(StopReading):
            recorded(model=_reads_before_stopping(reads), **again)
    recording = recorded(model=_reads_before_stopping(READS - sum(stops)), **again)
    assert_same_bits(recording, recorded(samples=20))
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("samples", [0, 20])
def test_it_goes_on_when_other_windows_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    """As with another bound of memory; also where the shards so far have no samples."""
    again = {"samples": samples, "state": tmp_path / "state"}
    monkeypatch.setattr("rdk_cuda.recipes.record.SHARD", 1)
    with pytest.raises(StopReading):
        recorded(model=_reads_before_stopping(3), **again)
    monkeypatch.undo()
    whole = recorded(samples=samples)
    assert_same_bits(recorded(**again), whole)
    monkeypatch.setattr("rdk_cuda.recipes.record.SHARD", 1)
    assert_same_bits(recorded(**again), whole)


def test_no_sums_stand_without_their_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is interrupted between the two files of a batch."""
    state, rename = tmp_path / "state", os.replace

    def replace(beside: Path, path: Path) -> None:
        if path.name == "samples-00003.safetensors":
            raise KeyboardInterrupt
        rename(beside, path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            recorded(samples=20, state=state)
    recording = recorded(model=_reads_before_stopping(READS - 3), samples=20, state=state)
    assert_same_bits(recording, recorded(samples=20))


PROGRAM = """
import os, sys, time
from tests.calibration.bigram_recordings import read, recorded
state, where = sys.argv[1:]
count = 0

def slow(ids):
    global count
    count += ids.numel() > 2
    if where == "reading" and count == 4:
        print("now", flush=True)
        time.sleep(100)
    return read(ids)

def replace(beside, path):
    if where == "renaming" and path.name == "sums.safetensors" and count == 4:
        print("now", flush=True)
        time.sleep(100)
    rename(beside, path)

rename, os.replace = os.replace, replace
recorded(model=slow, samples=20, state=state)
"""


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("renaming", signal.SIGKILL),
        pytest.param("reading", signal.SIGKILL, marks=pytest.mark.night),
        pytest.param("renaming", signal.SIGINT, marks=pytest.mark.night),
    ],
)
def test_a_killed_recording_goes_on_to_the_same_bits(
    tmp_path: Path, where: str, number: signal.Signals
) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", PROGRAM, str(state), where]
    process = interruptible.start(command, Path(__file__).parents[2])
    try:
        assert process.stdout.readline() == "now\n", process.stderr.read()
        process.send_signal(number)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode != 0
    left = sorted(state.glob(".sums.safetensors.*.tmp"))
    assert len(left) == ((where, number) == ("renaming", signal.SIGKILL))
    for file in left:  # what was killed long ago is no longer somebody else's work
        os.utime(file, (0, 0))

    resumed = _reads_before_stopping(READS - 3)  # three were kept
    recording = recorded(model=resumed, samples=20, state=state)
    assert_same_bits(recording, recorded(samples=20))
    shards = [f"samples-{number:05}.safetensors" for number in range(READS)]
    assert sorted(os.listdir(state)) == [*shards, SUMS]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperatures": (1.0,)}, r"temperatures was \[1.0, 0.6\] and is \[1.0\]"),
        ({"samples": 19}, "samples was 20 and is 19"),
        ({"context": 6}, "context was 5 and is 6"),
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"models": "b"}, "models was 'a' and is 'b'"),
        (
            {"windows": windows_of(12)},
            "text was '13 windows, 95 tokens.* is '12 windows, 88 tokens",
        ),
        ({"windows": [Window(9, w.ids) for w in windows_of()]}, "text was '13 windows.*is '13"),
    ],
)
def test_a_state_of_other_arguments_is_refused_and_says_which(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    arguments = {"samples": 20, "state": tmp_path / "state", "models": "a"}
    recorded(**arguments)
    with pytest.raises(RecordingError, match=f"another recording: {sentence}.*delete it"):
        recorded(**(arguments | changes))
