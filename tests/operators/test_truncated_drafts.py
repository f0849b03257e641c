"""Drafts inside of top-k, top-p and min-p."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from rdk_cuda import reference
from tests import generators
from tests.devices import MACHINES
from tests.tolerances import assert_same_draws

from .truncated_batches import MIN_P, SIZES, TOP_P, chosen


def assert_drafts_as_the_reference(seed: int) -> None:
    """Tokens, thresholds to the bit, q, and what `verify` makes of them."""
    random = Random(seed)
    kind = random.choice(("identity", "virtual", "mixed-2", "mixed-4", "intersection"))
    scale, dtype = random.choice((0.0, 1.0, 3.0)), random.choice(generators.DTYPES)
    batch = generators.batch(
        generators.affinity(kind, random.choice(SIZES[1:])),
        [random.randrange(4) for _ in range(3)],
        seed,
        dtype=dtype,
        draft_temperature=random.choice((1.0, 0.7, 0.0)),
        dynamic=random.choice((0, 3, 7)),
        scale=scale,
        forbidden=random.choice((0.0, 0.3)),
    )
    logits = batch.draft_logits
    if random.random() < 0.4:
        logits = (logits.float() * 2).round().div(2).to(dtype)
        batch = batch.replace(draft_logits=logits)
    rows, affinity = logits.shape[0], batch.affinity
    top_k = [random.choice((0, 1, 2, 7, affinity.draft_size, -1)) for _ in range(rows)]
    limits = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, TOP_P, rows),
        "min_p": chosen(random, MIN_P, rows),
    }
    limits = {name: tensor for name, tensor in limits.items() if random.random() < 0.6}
    scales = torch.full((rows,), float(batch.draft_temperature[0]))
    dynamic = (batch.dynamic_tokens, batch.dynamic_logits)
    draft = (logits, scales, torch.arange(rows) + seed, torch.arange(rows), *affinity.by_draft)
    tokens, stats = torch.ops.rdk.draft(*draft, *dynamic, **limits)
    trace = reference.Trace()
    exact = reference.draft(*draft, *dynamic, **limits, dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, exact[0], trace.margins(rows))
    torch.testing.assert_close(stats.double(), exact[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    if limits:
        assert torch.equal(stats[:, -1].nan_to_num(7), exact[1][:, -1].float().nan_to_num(7))
    spread = (logits, scales, *affinity.by_target, affinity.row_top, *dynamic)
    q = torch.ops.rdk.redistribute(*spread, **limits)
    exact_q = reference.redistribute(*spread, **limits, dtype=torch.float64)
    torch.testing.assert_close(q.double(), exact_q, rtol=1e-4, atol=1e-7, equal_nan=True)
    drawn = q.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    assert ((tokens == -1) | (drawn > 0)).all()

    batch = batch.replace(draft_token_ids=tokens, draft_stats=stats)
    trace = reference.Trace()
    expected = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    actual = torch.ops.rdk.verify(*batch.arguments())
    assert_same_draws(actual[0], expected[0], trace.margins(batch.size))


@pytest.mark.fast_in_the_emulator
def test_truncated_drafts_are_those_of_the_reference(device: str) -> None:
    for seed in range(16 if device in MACHINES else 150):
        assert_drafts_as_the_reference(seed)


@pytest.mark.ci
def test_many_truncated_drafts_are_those_of_the_reference(device: str) -> None:
    """A tenth of them in the emulator, which is slow."""
    for seed in range(1000, 1150 if device in MACHINES else 2500):
        assert_drafts_as_the_reference(seed)


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_a_row_of_drafts_that_is_not_truncated_has_the_same_bits() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 2500), [3] * 5, dynamic=9)
    rows = batch.draft_logits.shape[0]
    draft = (
        batch.draft_logits, torch.ones(rows), torch.arange(rows), torch.arange(rows),
        *batch.affinity.by_draft, batch.dynamic_tokens, batch.dynamic_logits,
    )  # fmt: skip
    plain = torch.ops.rdk.draft(*draft)
    off = torch.ops.rdk.draft(*draft, torch.zeros(rows, dtype=torch.int32))
    assert torch.equal(plain[0], off[0])
    assert torch.equal(plain[1], off[1][:, :-1])
    assert (off[1][:, -1] == -math.inf).all()
    verified = [
        torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[0]
        for _, stats in (plain, off)
    ]
    assert torch.equal(*verified)


@pytest.mark.fast_in_the_emulator
@pytest.mark.not_on("small-batches")
@pytest.mark.usefixtures("device")
def test_at_temperature_zero_many_rows_have_the_q_that_they_have_without_limits() -> None:
    """Blocks that share rows look at each of them before and behind the search for its cut."""
    rows, affinity = 400, generators.affinity("mixed-2", 300)
    given = (
        generators.logits(rows, affinity.draft_size),
        torch.zeros(rows),
        *affinity.by_target,
        affinity.row_top,
    )
    limits = {"top_k": torch.full((rows,), 2, dtype=torch.int32)}
    limited = torch.ops.rdk.redistribute(*given, **limits)
    assert torch.equal(limited, torch.ops.rdk.redistribute(*given))
