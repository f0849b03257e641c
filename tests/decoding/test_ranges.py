"""Ranges tell a profiler what a decoder does, and cost next to nothing where there is none."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch

import rdk_cuda
from rdk_cuda import ranges


class Recorder:
    """In place of the NVTX domain."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def get_event_attributes(self, message: str, payload: int) -> tuple[str, int]:
        return message, payload

    def push_range(self, attributes: tuple[str, int]) -> None:
        self.told.append(("push", attributes))

    def pop_range(self) -> None:
        self.told.append(("pop", None))

    def mark(self, attributes: tuple[str, int]) -> None:
        self.told.append(("mark", attributes))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(ranges, "_DOMAIN", found)
    monkeypatch.setattr(ranges, "_ATTRIBUTES", {})
    return found


def test_a_range_has_a_name_a_payload_and_an_end_even_where_something_fails(
    recorder: Recorder,
) -> None:
    def fail() -> None:
        with ranges.Range("step", 2):
            ranges.mark("accepted", 7)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert recorder.told == [("push", ("step", 2)), ("mark", ("accepted", 7)), ("pop", None)]


def test_nvtx_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no tool listens, nvtx gives a dummy that takes anything: ask a real domain."""
    nvtx = pytest.importorskip("nvtx")
    domain = nvtx.Domain("rdk")
    monkeypatch.setattr(ranges, "_DOMAIN", domain)
    monkeypatch.setattr(ranges, "_ATTRIBUTES", {})
    with ranges.Range("verify", 3):
        ranges.mark("accepted", 1)
    with pytest.raises(TypeError):
        domain.get_event_attributes(text="verify")


def test_where_no_tool_listens_nothing_is_told() -> None:
    nvtx = pytest.importorskip("nvtx")
    assert ranges._DOMAIN is None or isinstance(ranges._DOMAIN, nvtx.Domain)  # no dummy


def test_torch_profiler_sees_ranges() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile, ranges.Range("verify", 3):
        torch.ones(2)
    assert "rdk: verify" in {event.key for event in profile.key_averages()}


def test_redistribution_is_a_range_and_stays_one_graph(recorder: Recorder) -> None:
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
    logits = torch.randn(3, 2, 3)
    q = rdk_cuda.redistribute(logits, affinity)
    assert recorder.told == [("push", ("redistribute", 6)), ("pop", None)]
    compiled = torch.compile(
        lambda z: rdk_cuda.redistribute(z, affinity), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(logits), q)
    assert len(recorder.told) == 2


def test_nothing_needs_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)  # importing it fails
    spec = importlib.util.spec_from_file_location("rdk_cuda.ranges_without_nvtx", ranges.__file__)
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert without.nvtx is None
    with without.Range("verify", 3):
        without.mark("accepted", 1)
