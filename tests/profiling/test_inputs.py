"""The benchmark's inputs are what its rows say, and its plain PyTorch is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from profiling.bench import eager
from profiling.bench.cases import ACCEPTANCES, DTYPES, SAMPLERS, Case
from profiling.bench.workloads import build
from rdk_cuda import _ops as operators
from tests import generators

CPU = torch.device("cpu")
VERIFY = Case("verify", "float32", 2000, 500, batch=4, draft_length=4, acceptance="high")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_drafts_are_mostly_rejected_or_mostly_accepted(sampler: str, dtype: str) -> None:
    cases = {a: replace(VERIFY, acceptance=a, sampler=sampler, dtype=dtype) for a in ACCEPTANCES}
    means = {
        a: torch.tensor(build(case, CPU).accepted).double().mean() for a, case in cases.items()
    }
    assert means["low"] < 1
    assert means["high"] > 2.5


@pytest.mark.parametrize("sparse", [False, True], ids=["scatter", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["identity", "intersection", "first-order", "virtual", "mixed-2"])
def test_eager_redistribute_is_that_of_the_operator(
    kind: str, dtype: torch.dtype, sparse: bool
) -> None:
    affinity = generators.affinity(kind, 700)
    entries = eager.Entries.of(affinity)
    logits = generators.logits(3, affinity.draft_size, seed=3, dtype=dtype)
    temperature = torch.tensor([0.5, 1.0, 1.5])
    ours = operators.redistribute(logits, temperature, *affinity.by_target, affinity.row_top)
    q = eager.redistribute(logits, temperature, entries, entries.matrix() if sparse else None)
    torch.testing.assert_close(q, ours, rtol=1e-5, atol=1e-7)
