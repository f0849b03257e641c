"""`rdk::verify_shard`, on the sums of all ranks, decides what `rdk::verify` does on whole rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators
from tests.generators import Batch
from tests.operators.sharded import NOT_HERE, Calls, sharded
from tests.tolerances import BOUNDARY, assert_same_draws

pytestmark = pytest.mark.usefixtures("device")

SIZE = 5 * 1024 + 13
RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])


def assert_decides_as_verify(batch: Batch, ranks: int) -> Calls:
    """Every rank, to the bit."""
    tokens, num_accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    calls = sharded(batch, ranks)
    assert torch.equal(calls.tokens, tokens)
    for each in (*calls.first, *calls.second, *calls.third):
        assert torch.equal(each[1], num_accepted)
    for outputs in (calls.second, calls.third):
        assert all(torch.equal(each[0], outputs[0][0]) for each in outputs)
    return calls


def assert_is_the_reference(batch: Batch, ranks: int) -> None:
    """What each rank returns, call by call."""
    trace = reference.Trace()
    found, exact = sharded(batch, ranks), sharded(batch, ranks, reference, trace)
    clear = trace.margins(batch.size) > BOUNDARY
    for calls, expected_calls in (
        (found.first, exact.first),
        (found.second, exact.second),
        (found.third, exact.third),
    ):
        for outputs, expected in zip(calls, expected_calls, strict=True):
            for output, wanted in zip(outputs[:3], expected[:3], strict=True):
                assert torch.equal(output[clear], wanted[clear])
            weighed = outputs[3][clear].double(), expected[3][clear]
            torch.testing.assert_close(*weighed, rtol=1e-3, atol=1e-6)


@RANKS
@pytest.mark.fast_in_the_emulator(kind=("mixed-2",), ranks=(3,))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-2"])
def test_every_affinity_dtype_and_number_of_ranks(
    ranks: int, kind: str, dtype: torch.dtype
) -> None:
    batch = generators.batch(
        generators.affinity(kind, SIZE),
        [3, 0, 1, 5, 2] * 2,
        dtype=dtype,
        target_temperature=0.8,
        draft_temperature=1.2,
        dynamic=9,
        forbidden=0.1,
    ).with_stats()
    calls = assert_decides_as_verify(batch, ranks)
    assert (calls.drawn >> 32 > 0).any()  # not only the first try


@pytest.mark.parametrize("kind", ["virtual", "mixed-2"])
def test_each_call_returns_what_the_reference_does(kind: str) -> None:
    made = generators.batch(generators.affinity(kind, 2500), [3, 0, 1, 5, 2] * 2, dynamic=9)
    assert_is_the_reference(made.with_stats(), 2)


def needing_the_direct_pass(sequences: int) -> Batch:
    return generators.nearly_equal(2100, sequences).with_stats()


@RANKS
@pytest.mark.fast_in_the_emulator(ranks=(2,))
def test_the_direct_pass_is_that_of_whole_rows(ranks: int) -> None:
    calls = assert_decides_as_verify(needing_the_direct_pass(60), ranks)
    assert (calls.drawn == NOT_HERE).sum() > 10
    assert (calls.drawn >> 32 > 3).sum() > 10
    assert (calls.second[0][0][calls.drawn == NOT_HERE, 0] == -1).all()


def test_the_direct_pass_is_that_of_the_reference() -> None:
    assert_is_the_reference(needing_the_direct_pass(12), 3)


@RANKS
@pytest.mark.fast_in_the_emulator(ranks=(3,))
def test_a_residual_without_mass_is_drawn_from_p(ranks: int) -> None:
    batch = generators.without_residual(generators.nearly_equal(2100, sequences=40))
    calls = assert_decides_as_verify(batch, ranks)
    unfinished = calls.drawn == NOT_HERE
    assert unfinished.sum() > 5
    masses = [residual[..., 0] for *_, residual in calls.second]
    assert all((mass == 0).all() for mass in masses)
    assert all((residual[..., 1] >= 0).all() for *_, residual in calls.second)
    assert (calls.third[0][0][unfinished, 0] >= 0).all()


@RANKS
@pytest.mark.fast_in_the_emulator(ranks=(4,))
def test_a_greedy_target_takes_the_lowest_of_equal_ids_of_all_ranks(ranks: int) -> None:
    batch = generators.batch(generators.affinity("mixed-2", SIZE), [3, 0, 2] * 4, dynamic=3)
    target = batch.target_logits.round().clamp(max=1)  # nearly all columns tie, and chunks do
    temperature = torch.tensor([0.0, 0.0, 1.0]).repeat(4)
    rows = torch.tensor([0, 1, 2, 5, 6]).repeat(4) + torch.arange(4).repeat_interleave(5) * 8
    drafts = batch.draft_token_ids.clone()
    drafts[::2] = target[rows].argmax(1)[::2]
    batch = batch.replace(
        target_logits=target, target_temperature=temperature, draft_token_ids=drafts
    )
    calls = assert_decides_as_verify(batch.with_stats(), ranks)
    greedy = temperature == 0
    assert torch.equal(calls.first[0][0][greedy], calls.tokens[greedy])
    assert (calls.first[0][1][greedy] > 0).any()


@RANKS
@pytest.mark.fast_in_the_emulator(ranks=(2,))
def test_bad_values_have_the_results_of_whole_rows(ranks: int) -> None:
    """Rows, ids, draft rows, temperatures and offsets."""
    affinity = generators.affinity("virtual", SIZE)
    batch = generators.batch(affinity, [3, 0, 1, 4] * 3, dynamic=5).with_stats()
    target, drafts = batch.target_logits.clone(), batch.draft_token_ids.clone()
    stats = batch.draft_stats.clone()
    target[4] = -math.inf
    target[17, 3000], target[22, 17], target[24, 5000] = math.nan, math.inf, 3e38
    drafts[3:8] = torch.tensor([1, SIZE, -1, 7, 2**40])
    stats[9], stats[12, 1] = math.nan, 0.0
    rows = torch.arange(24, dtype=torch.int32)
    rows[torch.tensor([1, 3, 10, 20])] = torch.tensor([-1, -1, 99, -2], dtype=torch.int32)
    temperature = torch.tensor([1.0, 0.7, math.nan, 1.0, 0.0, -1.0, 1e-3, 0.5, 2.0, 0.0, 1.0, 0.9])
    offsets = batch.draft_offsets.clone()
    offsets[6] = 3
    batch = batch.replace(
        target_logits=target,
        draft_token_ids=drafts,
        draft_stats=stats,
        draft_rows=rows,
        target_temperature=temperature,
        draft_temperature=torch.tensor([1.0, 0.0, 1.0, math.inf] * 3),
        draft_offsets=offsets,
    )
    for changed in (batch, batch.replace(max_draft=2), batch.replace(max_draft=0)):
        calls = assert_decides_as_verify(changed, ranks)
        assert (calls.drawn[[2, 5]] == -1).all()


@RANKS
@pytest.mark.fast_in_the_emulator(ranks=(3,))
def test_drafts_that_were_truncated_are_evaluated_as_they_were_drawn(ranks: int) -> None:
    affinity = generators.affinity("mixed-1", SIZE)
    batch = generators.batch(affinity, [3, 1, 2] * 3, draft_temperature=0.9).with_stats()
    least = batch.draft_stats[:, :1] - torch.tensor([1.0, 3.0, math.inf]).repeat(6)[:, None]
    assert_decides_as_verify(
        batch.replace(draft_stats=torch.cat([batch.draft_stats, least], 1)), ranks
    )


@pytest.mark.parametrize("operators", [torch.ops.rdk, reference])
def test_a_drawn_token_outside_the_vocabulary_is_none(operators: Any) -> None:
    batch = needing_the_direct_pass(8)
    logits, *drafter = batch.arguments()[:17]
    ids, offsets, temperature = drafter[3:6]
    sums = reference.sum_shard(logits, ids, offsets, temperature, 1, 0, 2100)
    drawn = torch.tensor([2099, 2100, 2**31 - 1, 2**32 + 2100] * 2)
    tokens, num_accepted, _, _ = operators.verify_shard(
        logits, sums, *drafter, 0, None, None, drawn
    )
    assert tokens[range(8), num_accepted.tolist()].tolist() == [2099, -1, -1, -1] * 2
    # The last chunk has 52 columns; the first of every two sequences draws from it.
    drawn = torch.full((8,), NOT_HERE)
    residuals = torch.zeros(8, 3, 2)
    for column, token in ((51.0, 2099), (52.0, -1), (math.inf, 2048)):
        residuals[:, 2] = torch.tensor([1.0, column])
        tokens, _, _, _ = operators.verify_shard(
            logits, sums, *drafter, 0, None, None, drawn, residuals
        )
        assert tokens[0::2, 0].tolist() == [token] * 4


def test_the_tokens_of_the_reference_on_shards_are_those_of_the_reference() -> None:
    """A negative control of the comparisons above: their margins leave most sequences."""
    batch = generators.batch(generators.affinity("mixed-2", 2500), [3, 1] * 8).with_stats()
    trace = reference.Trace()
    exact = sharded(batch, 3, reference, trace)
    expected, _, _ = reference.verify(*batch.arguments(), dtype=torch.float64)
    assert_same_draws(exact.tokens, expected, trace.margins(batch.size))
    assert (trace.margins(batch.size) > BOUNDARY).sum() > 10
