"""`rdk::verify` decides what the reference decides from the same random words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.generators import Batch
from tests.tolerances import DISAGREEING_DRAWS, assert_same_draws

pytestmark = pytest.mark.usefixtures("device")


def decisions(trace: reference.Trace, name: str) -> int:
    return sum(decision == name for _, decision, _ in trace.decisions)


def assert_verifies_as_the_reference(batch: Batch) -> reference.Trace:
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    trace = reference.Trace()
    expected = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    assert tokens.dtype == torch.int64
    assert num_accepted.dtype == torch.int32
    margins = trace.margins(batch.size)
    assert_same_draws(tokens, expected[0], margins)
    assert_same_draws(num_accepted, expected[1], margins)
    return trace


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype) -> None:
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
        trace = assert_verifies_as_the_reference(batch)
        for name in ("accept", "keep", "bonus"):
            assert decisions(trace, name)


@pytest.mark.parametrize("size", [1, 2, 111, 1024, 1025, 8193, 32000])
@pytest.mark.parametrize("kind", ["intersection", "mixed-3"])
def test_awkward_sizes(kind: str, size: int) -> None:
    batch = generators.batch(generators.affinity(kind, size), [2, 0, 3], dynamic=2)
    assert_verifies_as_the_reference(batch)


@pytest.mark.parametrize("size", [128256, 151936, 262144])
def test_large_vocabularies(size: int) -> None:
    affinity = generators.affinity("virtual", size)
    batch = generators.batch(affinity, [2, 1], dtype=torch.bfloat16, dynamic=300)
    assert_verifies_as_the_reference(batch)


@pytest.mark.parametrize("lengths", [[], [0], [4], [1, 0, 2], [k % 4 for k in range(99)]])
def test_batch_sizes(lengths: list[int]) -> None:
    assert_verifies_as_the_reference(
        generators.batch(generators.affinity("mixed-2", 111), lengths, dynamic=3)
    )


@pytest.mark.slow
def test_four_thousand_sequences() -> None:
    """Fewer than 5 in 10,000 may differ, each at a boundary within 1e-5 (section 5)."""
    batch = generators.batch(
        generators.affinity("mixed-2", 60), [2] * 4000, dynamic=3, draft_temperature=0.9
    )
    tokens, _ = torch.ops.rdk.verify(*batch.arguments())
    trace = reference.Trace()
    expected, _ = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, expected, trace.margins(batch.size))
    different = int((tokens != expected).any(1).sum())
    assert different < DISAGREEING_DRAWS * len(trace.decisions)


# ------------------------------------------------------------------------------------- temperature


@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-2"])
@pytest.mark.parametrize("draft_temperature", [0.0, 0.6])
def test_a_greedy_target_returns_what_greedy_decoding_returns(
    kind: str, draft_temperature: float
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
    batch = batch.replace(draft_token_ids=drafts.flatten())
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    for b in range(40):
        accepted = int(num_accepted[b])
        assert accepted == int((drafts[b] == greedy[b, :3]).long().cumprod(0).sum())
        assert tokens[b, : accepted + 1].tolist() == greedy[b, : accepted + 1].tolist()
        assert (tokens[b, accepted + 1 :] == -1).all()


@pytest.mark.parametrize("target_temperature", [1.0, 0.0])
def test_a_one_hot_draft(target_temperature: float) -> None:
    """Temperature 0, and drafts without a distribution, which need no drafter logits at all."""
    batch = generators.batch(
        generators.affinity("mixed-1", 40),
        [3] * 200,
        draft_temperature=0.0,
        target_temperature=target_temperature,
    )
    trace = assert_verifies_as_the_reference(batch)
    if target_temperature:
        assert decisions(trace, "accept")
        assert decisions(trace, "keep")
    expected = torch.ops.rdk.verify(*batch.arguments())
    without = batch.replace(
        draft_logits=batch.draft_logits[:0],
        draft_rows=torch.full((600,), -1, dtype=torch.int32),
        draft_temperature=torch.full((200,), 0.7),
    )
    for actual, same in zip(torch.ops.rdk.verify(*without.arguments()), expected, strict=True):
        assert torch.equal(actual, same)


def test_a_draft_temperature_of_zero_reads_no_drafter_logits() -> None:
    batch = generators.batch(generators.affinity("mixed-1", 40), [2] * 50, draft_temperature=0.0)
    unread = batch.replace(draft_logits=torch.full_like(batch.draft_logits, math.nan))
    expected = torch.ops.rdk.verify(*batch.arguments())
    for actual, same in zip(torch.ops.rdk.verify(*unread.arguments()), expected, strict=True):
        assert torch.equal(actual, same)


def test_temperatures_are_per_sequence() -> None:
    batch = generators.batch(generators.affinity("virtual", 300), [2] * 60)
    random = generators.generator(9)
    batch = batch.replace(
        target_temperature=torch.randint(0, 3, (60,), generator=random) * 0.5,
        draft_temperature=torch.randint(0, 3, (60,), generator=random) * 0.6,
    )
    assert_verifies_as_the_reference(batch)


# --------------------------------------------------------------------------- what ends a draft


def test_a_draft_token_of_minus_one_ends_the_draft() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 300), [4] * 50, scale=0.1)
    drafts = batch.draft_token_ids.reshape(50, 4).clone()
    ends = torch.arange(50) % 4
    drafts[torch.arange(50), ends] = -1
    cut = batch.replace(draft_token_ids=drafts.flatten())
    assert_verifies_as_the_reference(cut)
    _, num_accepted = torch.ops.rdk.verify(*cut.arguments())
    assert (num_accepted <= ends).all()
    assert (num_accepted == ends).any()


@pytest.mark.parametrize("max_draft", [0, 1, 3, 6])
def test_only_the_first_max_draft_tokens_are_considered(max_draft: int) -> None:
    batch = generators.batch(generators.affinity("mixed-2", 300), [4, 1, 0] * 20)
    narrow = batch.replace(max_draft=max_draft)
    assert_verifies_as_the_reference(narrow)
    tokens, num_accepted = torch.ops.rdk.verify(*narrow.arguments())
    assert tokens.shape == (60, max_draft + 1)
    assert (num_accepted <= max_draft).all()
    drawn = tokens[torch.arange(60), num_accepted.long()]
    assert (drawn >= 0).all()
    assert ((tokens >= 0).sum(1) == num_accepted + 1).all()


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    affinity = Affinity.intersection(Vocabulary.identity(500))
    batch = generators.batch(affinity, [3] * 100)
    rows = torch.arange(300) + torch.arange(100).repeat_interleave(3)
    target = batch.target_logits.clone()
    target[rows] = batch.draft_logits
    _, num_accepted = torch.ops.rdk.verify(*batch.replace(target_logits=target).arguments())
    assert (num_accepted == 3).all()


def test_a_token_that_the_target_forbids_is_never_put_out() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 50), [3] * 300, forbidden=0.5)
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    for b in range(300):
        for j in range(int(num_accepted[b]) + 1):
            row = int(batch.draft_offsets[b]) + b + j
            assert batch.target_logits[row, tokens[b, j]] > -math.inf


# ------------------------------------------------------------------------------- the direct pass


def test_the_direct_pass_is_what_the_reference_does() -> None:
    """p and q differ only in a token of mass 3 %, which p forbids and the draft proposes.

    So the draft is rejected, each try succeeds with probability 0.03, 38 % of the sequences need
    the direct pass and about four succeed at the very last of the 32 tries.
    """
    size, sequences = 1100, 300
    affinity = Affinity.intersection(Vocabulary.identity(size))
    batch = generators.batch(affinity, [1] * sequences)
    logits = batch.draft_logits.clone()
    logits[:, 5] = logits.logsumexp(1) + math.log(0.03)
    target = batch.target_logits.clone()
    target[0::2] = logits
    target[0::2, 5] = -math.inf
    batch = batch.replace(
        target_logits=target, draft_logits=logits, draft_token_ids=torch.full((sequences,), 5)
    )
    trace = assert_verifies_as_the_reference(batch)
    assert 0.25 < decisions(trace, "direct") / sequences < 0.5


def test_a_residual_without_mass_is_drawn_from_p() -> None:
    """Stats of half the sum make q = 2 p: half are rejected, and nothing is left of p - q."""
    size, sequences = 1100, 100
    affinity = Affinity.intersection(Vocabulary.identity(size))
    batch = generators.batch(affinity, [1] * sequences)
    target = batch.target_logits.clone()
    target[0::2] = batch.draft_logits
    zeros = torch.zeros(sequences, dtype=torch.int64)
    _, stats = torch.ops.rdk.draft(
        batch.draft_logits, torch.ones(sequences), zeros, zeros, *affinity.by_draft
    )
    stats[:, 1] /= 2
    batch = batch.replace(target_logits=target, draft_stats=stats)
    trace = assert_verifies_as_the_reference(batch)
    assert 0.3 < decisions(trace, "direct") / sequences < 0.7
    tokens, _ = torch.ops.rdk.verify(*batch.arguments())
    assert (tokens[:, 0] >= 0).all()


# -------------------------------------------------------------------------- anything that is legal


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(generators.AFFINITIES))
    affinity = generators.affinity(kind, size, seed=draw(st.integers(0, 9)))
    lengths = draw(st.lists(st.integers(0, 4), max_size=5))
    batch = generators.batch(
        affinity,
        lengths,
        seed=draw(st.integers(0, 99)),
        dtype=draw(st.sampled_from(generators.DTYPES)),
        target_temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        draft_temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        dynamic=draw(st.sampled_from([0, 0, 1, 3])),
        forbidden=draw(st.sampled_from([0.0, 0.3, 0.9])),
    )
    drafts = sum(lengths)
    token = st.integers(-2, size + 1)
    if drafts and draw(st.booleans()):
        tokens = draw(st.lists(token, min_size=drafts, max_size=drafts))
        batch = batch.replace(draft_token_ids=torch.tensor(tokens))
    if drafts and draw(st.booleans()):
        row = st.integers(-2, drafts + 1)
        rows = draw(st.lists(row, min_size=drafts, max_size=drafts))
        batch = batch.replace(draft_rows=torch.tensor(rows, dtype=torch.int32))
    return batch.replace(max_draft=draw(st.integers(0, 5)))


@given(batches())
def test_any_batch(batch: Batch) -> None:
    assert_verifies_as_the_reference(batch)


# -------------------------------------------------------------- where a kernel changes its path


@pytest.mark.parametrize("size", [1, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    affinity = generators.affinity(kind, size)
    assert_verifies_as_the_reference(generators.batch(affinity, [2, 0, 3], dynamic=5))


@pytest.mark.parametrize("columns", [0, 1, 7, 1024, 1025])
def test_any_number_of_dynamic_columns(columns: int) -> None:
    affinity = generators.affinity("mixed-1", 2500)
    batch = generators.batch(affinity, [2, 1, 0, 3, 2], dynamic=columns)
    if columns == 0:
        batch = batch.replace(
            dynamic_tokens=torch.empty(8, 0, dtype=torch.int32), dynamic_logits=torch.empty(8, 0)
        )
    assert_verifies_as_the_reference(batch)


@pytest.mark.parametrize("draft", generators.DTYPES, ids=str)
@pytest.mark.parametrize("target", generators.DTYPES, ids=str)
def test_target_and_drafter_of_different_dtypes(target: torch.dtype, draft: torch.dtype) -> None:
    batch = generators.batch(
        generators.affinity("mixed-2", 2500), [3, 1] * 5, dtype=draft, dynamic=9
    )
    assert_verifies_as_the_reference(batch.replace(target_logits=batch.target_logits.to(target)))


@pytest.mark.parametrize("length", [8, 9, 17])
def test_more_positions_than_a_block_has_warps(length: int) -> None:
    affinity = generators.affinity("identity", 60)
    batch = generators.batch(affinity, [length, 1, length])
    rows = torch.arange(batch.draft_token_ids.numel())
    rows += torch.repeat_interleave(torch.arange(3), batch.draft_offsets.diff())
    target = batch.target_logits.clone()
    target[rows] = batch.draft_logits  # accepted to the end
    batch = batch.replace(target_logits=target)
    assert_verifies_as_the_reference(batch)
    assert torch.ops.rdk.verify(*batch.arguments())[1].tolist() == [length, 1, length]


def test_four_priors() -> None:
    """The most that an affinity may have."""
    affinity = generators.affinity("mixed-4", 2500)
    assert_verifies_as_the_reference(generators.batch(affinity, [3, 1, 2] * 3))


@pytest.mark.parametrize("sequences", [100, 300])
def test_the_cpu_operator_decides_the_same(cpu: Any, sequences: int) -> None:
    """Where it does not, float64 shows a boundary within 1e-5 (section 5)."""
    affinity = generators.affinity("mixed-2", 2500)
    batch = generators.batch(affinity, [2] * sequences, dtype=torch.bfloat16, dynamic=9)
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    expected = cpu.verify(*batch.arguments())
    margins = torch.full((sequences,), torch.inf, dtype=torch.float64)
    if not torch.equal(tokens, expected[0]):
        trace = reference.Trace()
        reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
        margins = trace.margins(sequences)
    assert_same_draws(tokens, expected[0], margins)
    assert_same_draws(num_accepted, expected[1], margins)
