"""`rdk::verify` decides what the reference decides from the same random words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import reference
from tests import generators
from tests.generators import Batch
from tests.tolerances import DISAGREEING_DRAWS, assert_same_draws

pytestmark = pytest.mark.usefixtures("device")
EITHER_METHOD = pytest.mark.parametrize("method", [0, 1], ids=["by token", "by block"])
# Decisions that a batch of every kind leads to.
LED_TO = (("accept", "keep", "bonus"), ("go on", "keep", "race"))


def decisions(trace: reference.Trace, name: str) -> int:
    return sum(decision == name for _, decision, _ in trace.decisions)


def verified(batch: Batch) -> tuple[Tensor, Tensor]:
    tokens, num_accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    return tokens, num_accepted


def assert_verifies_as_the_reference(batch: Batch) -> reference.Trace:
    tokens, num_accepted = verified(batch)
    trace = reference.Trace()
    expected = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    assert tokens.dtype == torch.int64
    assert num_accepted.dtype == torch.int32
    margins = trace.margins(batch.size)
    assert_same_draws(tokens, expected[0], margins)
    assert_same_draws(num_accepted, expected[1], margins)
    return trace


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*generators.AFFINITIES, "mixed-4"])
@EITHER_METHOD
def test_every_affinity_and_dtype(method: int, kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    lengths = [3, 0, 1, 5, 2] * 4
    for dynamic, forbidden in ((0, 0.0), (9, 0.1)):
        batch = generators.batch(
            affinity,
            lengths,
            dtype=dtype,
            target_temperature=0.8,
            draft_temperature=1.2,
            dynamic=dynamic,
            forbidden=forbidden,
        )
        trace = assert_verifies_as_the_reference(batch.replace(method=method))
        for name in LED_TO[method]:
            assert decisions(trace, name)


@pytest.mark.parametrize("size", [1, 2, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-3"])
@EITHER_METHOD
def test_sizes_around_lanes_chunks_and_warps(method: int, kind: str, size: int) -> None:
    batch = generators.batch(generators.affinity(kind, size), [2, 0, 3], dynamic=5)
    assert_verifies_as_the_reference(batch.replace(method=method))


@pytest.mark.parametrize("size", [128256, 151936, 262144])
def test_large_vocabularies(size: int) -> None:
    affinity = generators.affinity("virtual", size)
    batch = generators.batch(affinity, [2, 1], dtype=torch.bfloat16, dynamic=300)
    assert_verifies_as_the_reference(batch)


@pytest.mark.not_on("large-batches", "small-batches")
@pytest.mark.ci
@EITHER_METHOD
def test_four_thousand_sequences(method: int) -> None:
    """Fewer than 5 in 10,000 may differ, each at a boundary within 1e-5 (section 5)."""
    batch = generators.batch(
        generators.affinity("mixed-2", 60), [4, 1, 3, 2] * 1000, dynamic=3, draft_temperature=0.9
    ).replace(method=method)
    tokens, _ = verified(batch)
    trace = reference.Trace()
    expected, _, _ = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, expected, trace.margins(batch.size))
    different = int((tokens != expected).any(1).sum())
    assert different < DISAGREEING_DRAWS * len(trace.decisions)


# ------------------------------------------------------------------------------------- temperature


@pytest.mark.fast_in_the_emulator(kind=("virtual",))
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-2"])
@pytest.mark.parametrize("draft_temperature", [0.0, 0.6])
@EITHER_METHOD
def test_a_greedy_target_returns_what_greedy_decoding_returns(
    method: int, kind: str, draft_temperature: float
) -> None:
    # bfloat16 makes ties likely: the lowest id wins.
    batch = generators.batch(
        generators.affinity(kind, 2500),
        [3] * 40,
        dtype=torch.bfloat16,
        target_temperature=0.0,
        draft_temperature=draft_temperature,
        dynamic=5,
    )
    # A drafter that is often right, or everything would be rejected.
    greedy = batch.target_logits.float().argmax(1).reshape(40, 4)
    right = torch.rand(40, 3, generator=generators.generator(5)) < 0.7
    drafts = torch.where(right, greedy[:, :3], batch.draft_token_ids.reshape(40, 3))
    batch = batch.replace(draft_token_ids=drafts.flatten(), method=method)
    tokens, num_accepted = verified(batch)
    for b in range(40):
        accepted = int(num_accepted[b])
        assert accepted == int((drafts[b] == greedy[b, :3]).long().cumprod(0).sum())
        assert tokens[b, : accepted + 1].tolist() == greedy[b, : accepted + 1].tolist()
        assert (tokens[b, accepted + 1 :] == -1).all()


@EITHER_METHOD
def test_a_greedy_tie_goes_to_the_lower_column_of_a_lane_a_chunk_and_a_row(method: int) -> None:
    columns = [(0, 1), (5, 37), (31, 32), (64, 992), (5, 1023), (1023, 1024), (9, 2499)]
    affinity = generators.affinity("identity", 2500)
    batch = generators.batch(affinity, [0] * len(columns), target_temperature=0.0)
    logits = batch.target_logits.clone()
    for row, tied in enumerate(columns):
        logits[row, list(tied)] = 50.0
    tokens, _ = verified(batch.replace(target_logits=logits, method=method))
    assert tokens[:, 0].tolist() == [first for first, _ in columns]


@pytest.mark.parametrize("target_temperature", [1.0, 0.0])
@EITHER_METHOD
def test_a_one_hot_draft(method: int, target_temperature: float) -> None:
    """Temperature 0, and drafts without a distribution, which need no drafter logits at all."""
    batch = generators.batch(
        generators.affinity("mixed-1", 40),
        [3] * 200,
        draft_temperature=0.0,
        target_temperature=target_temperature,
    ).replace(method=method)
    trace = assert_verifies_as_the_reference(batch)
    if target_temperature:
        for name in LED_TO[method][:2]:
            assert decisions(trace, name)
    expected = verified(batch)
    unread = batch.replace(draft_logits=torch.full_like(batch.draft_logits, math.nan))
    without = batch.replace(
        draft_logits=batch.draft_logits[:0],
        draft_rows=torch.full((600,), -1, dtype=torch.int32),
        draft_temperature=torch.full((200,), 0.7),
    )
    for same in (unread, without):
        assert all(map(torch.equal, verified(same), expected))


# ------------------------------------------------------------------------------- the direct pass


@pytest.mark.not_on("small-batches")
def test_the_direct_pass_is_what_the_reference_does() -> None:
    """p and q differ only in a token of mass 3 %, which p forbids and the draft proposes.

    So the draft is rejected, each try succeeds with probability 0.03, 38 % of the sequences need
    the direct pass and about four succeed at the very last of the 32 tries.
    """
    trace = assert_verifies_as_the_reference(generators.nearly_equal(1100, sequences=300))
    assert 0.25 < decisions(trace, "direct") / 300 < 0.5


@pytest.mark.not_on("small-batches")
def test_the_direct_pass_by_block_is_what_the_reference_does() -> None:
    """The first draft leaves a factor of 0.95, and the target forbids the second.

    Of the second row, 0.95 p exceeds q at token 0 only, but p at token 3, too.
    """
    sequences = 300
    q = torch.tensor([0.5, 0.02, 0.02, 0.4, 0.06])
    p = torch.tensor(
        [[0.501, 0.019, 0.02, 0.4, 0.06], [0.54, 0.02, 0.02, 0.42, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]
    )
    batch = generators.batch(generators.affinity("identity", 5), [2] * sequences)
    batch = batch.replace(
        target_logits=p.log().repeat(sequences, 1),
        draft_logits=q.log().repeat(2 * sequences, 1),
        draft_token_ids=torch.tensor([1, 4]).repeat(sequences),
    )
    trace = assert_verifies_as_the_reference(batch.replace(method=1))
    assert decisions(trace, "give up")
    assert decisions(trace, "direct") > 20


@pytest.mark.not_on("small-batches")
def test_a_residual_without_mass_is_drawn_from_p() -> None:
    made = generators.batch(generators.affinity("identity", 1100), [1] * 100)
    batch = generators.without_residual(made)
    trace = assert_verifies_as_the_reference(batch)
    assert 0.3 < decisions(trace, "direct") / 100 < 0.7
    tokens, _ = verified(batch)
    assert (tokens[:, 0] >= 0).all()


# -------------------------------------------------------------- where a kernel changes its path


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("kind", ["virtual", "mixed-2"])
def test_stats_that_are_passed_change_no_bit_but_another_seed_or_position_does(kind: str) -> None:
    batch = generators.batch(generators.affinity(kind, 2600), [3, 0, 1, 5, 2, 4, 1], dynamic=7)
    expected = verified(batch)
    assert all(map(torch.equal, verified(batch.with_stats()), expected))
    for name in ("step_keys", "positions"):
        tokens, _ = verified(batch.replace(**{name: getattr(batch, name) + 1}))
        assert not torch.equal(tokens, expected[0])


@pytest.mark.parametrize("columns", [0, 1, 7, 1024, 1025])
def test_any_number_of_dynamic_columns(columns: int) -> None:
    affinity = generators.affinity("mixed-1", 2500)
    batch = generators.batch(affinity, [2, 1, 0, 3, 2], dynamic=columns)
    if columns == 0:
        batch = batch.replace(
            dynamic_tokens=torch.empty(8, 0, dtype=torch.int32), dynamic_logits=torch.empty(8, 0)
        )
    assert_verifies_as_the_reference(batch)


@pytest.mark.parametrize("length", [3, 8, 9, 17, 40])
@EITHER_METHOD
def test_a_draft_equal_to_the_target_is_accepted_however_long(method: int, length: int) -> None:
    """Also where it has more positions than a block has warps, or a warp has lanes."""
    lengths = [length, 1] * 20
    batch = generators.batch(generators.affinity("identity", 60), lengths).replace(method=method)
    rows = torch.arange(sum(lengths)) + torch.arange(40).repeat_interleave(torch.tensor(lengths))
    batch.target_logits[rows] = batch.draft_logits
    assert_verifies_as_the_reference(batch)
    assert verified(batch)[1].tolist() == lengths


def test_the_python_layer_names_the_methods() -> None:
    affinity = generators.affinity("identity", 40)
    logits = generators.logits(60, 40, 3).unflatten(0, (20, 3))
    target = generators.logits(80, 40, 4).unflatten(0, (20, 4))
    draft = rdk_cuda.draft(logits, affinity, seeds=1, positions=0)
    by_token = rdk_cuda.verify(target, draft, affinity)
    assert torch.equal(rdk_cuda.verify(target, draft, affinity, method="token")[0], by_token[0])
    assert not torch.equal(rdk_cuda.verify(target, draft, affinity, method="block")[0], by_token[0])
