"""The inputs are what the rows say of them, and all calls of a case do the same work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from profiling.bench.cases import (
    ACCEPTANCES,
    DTYPES,
    OPERATORS,
    PAIR,
    ROWS,
    SAMPLERS,
    Case,
    preset_cases,
)
from profiling.bench.workloads import affinity_of, build

CPU = torch.device("cpu")
VERIFY = Case("verify", "float32", 2000, 500, batch=4, draft_length=4, acceptance="high")


@pytest.mark.parametrize("sampler", ["virtual", "pruned"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_drafts_are_mostly_rejected_or_mostly_accepted(sampler: str, dtype: str) -> None:
    means = {}
    for acceptance in ACCEPTANCES:
        case = replace(VERIFY, acceptance=acceptance, sampler=sampler, dtype=dtype)
        counts = torch.tensor(build(case, CPU).accepted, dtype=torch.float32)
        means[acceptance] = float(counts.mean())
    assert means["low"] < 1
    assert means["high"] > 2.5


@pytest.mark.parametrize("columns", [0, 6])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_step_decides_what_its_verification_alone_decides(sampler: str, columns: int) -> None:
    verify = build(replace(VERIFY, sampler=sampler, columns=columns), CPU)
    step = build(replace(VERIFY, sampler=sampler, columns=columns, operator=PAIR), CPU)
    without = build(replace(VERIFY, sampler=sampler, columns=columns, stats=False), CPU)
    for index in range(verify.sets):
        tokens, accepted = verify.ours(index)  # type: ignore[misc]
        assert tuple(accepted.tolist()) == verify.accepted[index]
        for other in (step, without):
            assert torch.equal(other.ours(index)[0], tokens)  # type: ignore[index]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_peer_runs_on_every_set(operator: str) -> None:
    (case, *_) = (c for c in preset_cases("tiny", "cpu") if c.operator == operator)
    workload = build(replace(case, columns=case.columns or 3), CPU)
    for index in range(workload.sets):
        for call in (workload.ours, *workload.peers.values()):
            assert call(index) is not None


@pytest.mark.parametrize(("entries", "rank"), [(1, 0), (5, 0), (1, 4), (3, 2)])
def test_rows_have_the_entries_and_priors_that_a_case_says(entries: int, rank: int) -> None:
    affinity = affinity_of(ROWS, 2000, 500, entries, rank)
    assert affinity.row_offsets.diff().tolist() == [entries] * 500
    assert affinity.rank == rank
    assert affinity.bias.abs().max() < 1e-6
    case = replace(VERIFY, sampler=ROWS, entries=entries, rank=rank)
    assert f"n={entries}" in case.name
    assert (f"R={rank}" in case.name) == (rank > 0)
    workload = build(case, CPU)
    assert workload.affinity is not None
    assert (workload.affinity.nnz, workload.affinity.rank) == (500 * entries, rank)
    assert torch.tensor(workload.accepted).float().mean() > 2.5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", ["tiny", "short", "serving"])
def test_a_preset_has_every_operator_and_no_case_twice(preset: str, device: str) -> None:
    cases = preset_cases(preset, device)
    assert {case.operator for case in cases} == set(OPERATORS)
    assert len({case.name for case in cases}) == len(cases)


def test_serving_has_the_shapes_that_the_documents_quote() -> None:
    names = {case.name for case in preset_cases("serving", "cpu")}
    for dtype in DTYPES:
        for acceptance in ACCEPTANCES:
            shape = f"virtual Vt=128256 Vd=32768 B=8 K=4 {dtype} {acceptance}"
            assert f"draft+verify {shape}" in names
        assert f"redistribute virtual Vt=128256 Vd=32768 B=8 {dtype}" in names
    names = {case.name for case in preset_cases("serving", "cuda")}
    for batch in (1, 64, 256):
        assert f"verify virtual Vt=128256 Vd=32768 B={batch} K=5 bfloat16 low" in names
        assert f"draft virtual Vt=128256 Vd=32768 B={batch} bfloat16" in names
    assert "gather_logits Vt=128256 B=64 C=128 d=4096 bfloat16" in names
    assert "redistribute virtual Vt=128256 Vd=32768 B=64 bfloat16" in names
