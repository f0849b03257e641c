"""CPU and CUDA draw the same tokens from the same seeds, but for rare boundaries.

DESIGN section 5: fewer than 5 in 10,000 draws may differ, each where float64 shows a boundary
within 1e-5.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda import reference
from tests import generators
from tests.generators import Batch
from tests.operators.test_draft import arguments
from tests.proof.emulated.workloads import WORKLOADS
from tests.tolerances import assert_same_draws

from .recorded import recorded
from .stand_in import moved

DRAWS, AT_ONCE = 100_000, 1000


def seeds_of(round_: int, count: int) -> Tensor:
    random = generators.generator(1000 + round_)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=random)


@pytest.mark.parametrize(("kind", "size"), [("mixed-2", 60), ("virtual", 2500)])
def test_drafts(cpu: Any, native: Any, device: torch.device, kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    given = arguments(affinity, AT_ONCE, temperature=0.8, dynamic=9, dtype=torch.bfloat16)
    on_device = moved(given, device)
    margins = torch.full((DRAWS,), torch.inf, dtype=torch.float64)
    drawn, expected = [], []
    for round_ in range(DRAWS // AT_ONCE):
        seeds = seeds_of(round_, AT_ONCE)
        rest = given[3:]
        expected.append(cpu.draft(*given[:2], seeds, *rest)[0])
        drawn.append(native.draft(*on_device[:2], seeds.to(device), *on_device[3:])[0].cpu())
        for row in (drawn[-1] != expected[-1]).nonzero().flatten().tolist():
            one = slice(row, row + 1)
            per_row = [x[one] for x in (*given[:2], seeds, given[3])]
            alone = (*per_row, *affinity.by_draft, given[-2][one], given[-1][one])
            trace = reference.Trace()
            reference.draft(*alone, dtype=torch.float64, trace=trace)
            margins[round_ * AT_ONCE + row] = trace.margins(1)[0]
    assert_same_draws(torch.cat(drawn), torch.cat(expected), margins)


def with_seeds(batch: Batch, round_: int) -> Batch:
    return batch.replace(step_keys=seeds_of(round_, batch.size))


@pytest.mark.parametrize(("kind", "sequences"), [("mixed-2", 40), ("virtual", 300)])
def test_verified_tokens(
    cpu: Any, native: Any, device: torch.device, kind: str, sequences: int
) -> None:
    """Batches that are split and batches that are taken in order."""
    batch = generators.batch(
        generators.affinity(kind, 2500), [2] * sequences, dtype=torch.bfloat16, dynamic=9
    )
    rounds = 12_000 // sequences
    on_device = moved(batch, device)
    margins = torch.full((rounds * sequences,), torch.inf, dtype=torch.float64)
    drawn, expected = [], []
    for round_ in range(rounds):
        now = with_seeds(batch, round_)
        decided = cpu.verify(*now.arguments())[:2]
        expected.append(torch.cat([x.view(sequences, -1) for x in decided], 1))
        there = on_device.replace(step_keys=now.step_keys.to(device))
        results = native.verify(*there.arguments())[:2]
        drawn.append(torch.cat([x.cpu().view(sequences, -1) for x in results], 1))
        if not torch.equal(drawn[-1], expected[-1]):
            trace = reference.Trace()
            reference.verify(*now.arguments(), dtype=torch.float64, trace=trace)
            margins[round_ * sequences :][:sequences] = trace.margins(sequences)
    assert int(torch.cat(expected)[:, -1].sum()) > rounds * sequences / 2  # drafts do get accepted
    assert_same_draws(torch.cat(drawn), torch.cat(expected), margins)


@pytest.mark.parametrize("workload", [n for n in WORKLOADS if "draft" in n or "verify" in n])
def test_the_workloads_of_the_emulated_tests(
    cpu: Any, native: Any, device: torch.device, workload: str
) -> None:
    """So few draws that none lies at a boundary. Stats are judged against float64, elsewhere."""
    call = recorded(workload)
    for actual, expected in zip(call.on(device)(native), call(cpu), strict=True):
        if not expected.is_floating_point():
            assert torch.equal(actual.cpu(), expected)
