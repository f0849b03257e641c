"""Peers get what they ask for, are told right from wrong ones, and have a row each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from profiling.bench import eager
from profiling.bench.cases import ACCEPTANCES, PAIR, Case
from profiling.bench.workloads import affinity_of, draw_inputs
from profiling.peers import __main__ as compare
from profiling.peers import installed as installed_peers
from profiling.peers import samplers
from profiling.peers.losslessness import Verdict, check
from profiling.peers.samplers import (
    CAPTURED,
    OURS,
    SPECULATIVE,
    Decided,
    Peer,
    Sampler,
    Step,
    full_width,
    scattered,
)
from rdk_cuda import Affinity
from tests.tolerances import CERTAIN

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
DRAWS = 8192


def inputs(acceptance: str = "low", sampler: str = "virtual") -> tuple[Affinity, Step]:
    case = Case(PAIR, "float32", 300, 100, 1, 2, sampler=sampler, acceptance=acceptance)
    affinity = affinity_of(sampler, 300, 100)
    drawn = draw_inputs(case, affinity, torch.Generator().manual_seed(0))
    target = drawn.target_logits.unflatten(0, (1, 3))
    # Temperatures other than 1, which a peer may forget.
    temperature = torch.full((1,), 0.8)
    return affinity, Step(
        drawn.draft_logits, target, temperature, drawn.step_keys, drawn.positions[0]
    )


def verdict(
    sampler: Callable[[Step], Decided], affinity: Affinity, step: Step, rule: str = SPECULATIVE
) -> Verdict:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return check(sampler, step, affinity, draws=DRAWS, acceptance=rule)


HERE = [
    (name, sampler)
    for name, peer in installed_peers.known_peers().items()
    for sampler in ("virtual", "pruned")
    if peer.missing(CPU, sampler) is None and not name.startswith("compiled")
]


@pytest.mark.night
@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize(("name", "sampler"), HERE)
def test_peers_that_run_here_are_right(name: str, sampler: str, acceptance: str) -> None:
    peer = installed_peers.known_peers()[name]
    affinity, step = inputs(acceptance, sampler)
    assert verdict(peer.make(affinity), affinity, step).wrong is None


def without_residual(target: Tensor, q: Tensor, tokens: Tensor, temperature: Tensor) -> Decided:
    """The wrong sampler that is easiest to write: p in place of max(p - q, 0)."""
    decided, accepted = eager.verify(target, q, tokens, temperature)
    p = torch.softmax(target / temperature[:, None, None], 2)
    at_stop = p[torch.arange(len(p)), accepted]
    return decided.scatter(1, accepted[:, None], torch.multinomial(at_stop, 1)), accepted


@pytest.mark.parametrize(
    ("judge", "acceptance", "place"),
    [(without_residual, "low", "token 1"), (without_residual, "high", "token 1")],
)
def test_wrong_samplers_are_beyond_doubt(
    judge: Callable[..., Decided], acceptance: str, place: str
) -> None:
    affinity, step = inputs(acceptance)
    found = verdict(full_width(scattered(affinity), judge), affinity, step)
    assert place in found.wrong
    figures = found.figures
    assert min(*figures["token_probabilities"], figures["accepted_probability"]) < CERTAIN


@pytest.mark.parametrize("still", [False, True])
def test_a_captured_step_has_a_fresh_key_each_time(
    monkeypatch: pytest.MonkeyPatch, still: bool
) -> None:
    """Recorded in place of a graph; the control is one whose position stays where it was."""

    def capture(call: Callable[[], Decided]) -> tuple[Callable[[], object], Decided]:
        results = call()
        recorded = make_fx(call)()

        def replay() -> None:
            for kept, new in zip(results, recorded(), strict=True):
                kept.copy_(new)

        return replay, results

    monkeypatch.setattr(samplers, "capture", capture)
    if still:
        monkeypatch.setattr(samplers.Captured, "_next", Sampler.__call__)
    affinity, step = inputs("high")
    found = verdict(samplers.captured(affinity), affinity, step)
    assert found.wrong is None  # in a test each step has one replay, and its own seeds
    one = samplers.captured(affinity)
    different = {str(one(step)[0].tolist()) for _ in range(64)}
    assert (len(different) > 1) != still


def compared(tmp_path: Path, *peers: str, code: int = 0) -> list[dict]:
    """The rows of a comparison."""
    options = ("--device", "cpu", "--preset", "tiny", "--repeats", "3", "--draws", "4096")
    output = tmp_path / "rows.json"
    assert compare.main([*options, "--peers", *peers, "--output", str(output)]) == code
    rows: list[dict] = json.loads(output.read_text())["rows"]
    return rows


def test_every_peer_has_a_row_with_every_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = ("eager", "scatter-logits", "vllm")
    rows = {(row["sampler"], row["peer"]): row for row in compared(tmp_path, *peers)}
    named = (OURS, CAPTURED, *peers)
    assert list(rows) == [(s, peer) for s in ("virtual", "pruned") for peer in named]
    reasons = {key: row["reason"] for key, row in rows.items() if row["status"] == "missing"}
    assert reasons == {
        **{(s, CAPTURED): "CUDA graphs need a GPU" for s in ("virtual", "pruned")},
        ("virtual", "scatter-logits"): "a virtual token has no single place among the logits",
        ("virtual", "vllm"): "needs a GPU",
        ("pruned", "vllm"): "needs a GPU",
    }
    for row in (row for key, row in rows.items() if key not in reasons):
        assert row["status"] == "right", row
        assert set(row["check"]) == {"low", "high", "size"}
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert row["ratio"] == 1 if row["peer"] == OURS else row["ratio"] > 0
        assert (row["warm_us"] is None) == (row["peer"] != OURS)
        assert (row["host_us"] is None) == (row["peer"] != OURS)
        assert row["accepted_mean"] == row["check"]["size"]["accepted_mean"]
        assert row["kept_bytes"] < 500 if row["peer"] == OURS else row["kept_bytes"] > 1200
        assert row["peak_bytes"] > 0
    printed = capsys.readouterr()
    assert "(CUDA graphs need a GPU), scatter-logits (a virtual token has" in printed.out
    assert "Of the time of ours" in printed.out
    assert "[2/2] draft+verify pruned" in printed.err


def test_a_wrong_peer_is_marked_and_one_that_raises_is_missing_with_what_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(affinity: Affinity) -> Sampler:
        raise ImportError("libcuda.so.1 is not there\nat all")

    def wrong(affinity: Affinity) -> Sampler:
        return full_width(scattered(affinity), without_residual)

    known = installed_peers.known_peers()
    planted = {"wrong": Peer("wrong", wrong), "broken": Peer("broken", broken)}
    monkeypatch.setattr(compare, "known_peers", lambda: {**known, **planted})
    rows = compared(tmp_path, "wrong", "broken")
    statuses = {row["peer"]: row["status"] for row in rows}
    assert statuses == {OURS: "right", CAPTURED: "missing", "wrong": "WRONG", "broken": "missing"}
    assert rows[3]["reason"] == "raises ImportError: libcuda.so.1 is not there"
    assert rows[3]["median_us"] is None
    printed = capsys.readouterr().out
    assert printed.count("WRONG: wrong: token 1 of a step is not the target's") == 2
