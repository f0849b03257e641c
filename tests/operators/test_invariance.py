"""A row's result has the same bits whatever is computed beside it (DESIGN, "To the bit")."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests import generators
from tests.generators import Batch

pytestmark = pytest.mark.usefixtures("device")

LENGTHS = [3, 0, 1, 5, 2, 4, 1]


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal with NaN equal to NaN, naming the first difference."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    same = actual == expected
    if actual.is_floating_point():
        same |= actual.isnan() & expected.isnan()
    assert same.all(), f"first difference at {(~same).nonzero()[0].tolist()}"


@pytest.fixture(params=[("virtual", torch.float32), ("mixed-2", torch.bfloat16)], ids=str)
def batch(request: pytest.FixtureRequest) -> Batch:
    """Two chunks of drafter columns and one of dynamic ones, three of the target's."""
    kind, dtype = request.param
    return generators.batch(
        generators.affinity(kind, 2600),
        LENGTHS,
        dtype=dtype,
        draft_temperature=0.9,
        target_temperature=1.1,
        dynamic=7,
        forbidden=0.05,
    )


# ------------------------------------------------------------------------ draft and redistribute


def drafted(batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, stats and probs of some rows of a batch, one call each."""
    assert batch.dynamic_tokens is not None
    assert batch.dynamic_logits is not None
    logits = batch.draft_logits[rows]
    temperature = torch.full(logits.shape[:-1], 0.9)
    dynamic = (batch.dynamic_tokens[rows], batch.dynamic_logits[rows])
    affinity = batch.affinity
    tokens, stats = torch.ops.rdk.draft(
        logits, temperature, rows * 31, rows + 2**33, *affinity.by_draft, *dynamic
    )
    probs = torch.ops.rdk.redistribute(
        logits, temperature, *affinity.by_target, affinity.row_top, *dynamic
    )
    return tokens, stats, probs


def test_draft_rows_alone_together_in_any_order_and_shape(batch: Batch) -> None:
    rows = torch.arange(16)
    together = drafted(batch, rows)
    for row in range(16):
        for actual, expected in zip(drafted(batch, torch.tensor(row)), together, strict=True):
            assert_same_bits(actual, expected[row])
    for order in (rows.flip(0), rows.repeat(5), rows.reshape(2, 4, 2)):
        for actual, expected in zip(drafted(batch, order), together, strict=True):
            assert_same_bits(actual, expected[order])


def test_draft_rows_as_slices_of_wider_rows(batch: Batch) -> None:
    """Other strides and alignments, so also other vector loads."""
    expected = drafted(batch, torch.arange(16))
    arguments = (torch.full((16,), 0.9), torch.arange(16) * 31, torch.arange(16) + 2**33)
    affinity = batch.affinity
    for before in range(5):
        logits = generators.in_wider_rows(batch.draft_logits, before)
        dynamic = (
            generators.in_wider_rows(batch.dynamic_tokens.float(), before).int(),
            generators.in_wider_rows(batch.dynamic_logits, before),
        )
        tokens, stats = torch.ops.rdk.draft(logits, *arguments, *affinity.by_draft, *dynamic)
        probs = torch.ops.rdk.redistribute(
            logits, arguments[0], *affinity.by_target, affinity.row_top, *dynamic
        )
        for actual, same in zip((tokens, stats, probs), expected, strict=True):
            assert_same_bits(actual, same)


def test_more_unused_dynamic_columns_change_nothing(batch: Batch) -> None:
    rows = torch.arange(16)
    expected = drafted(batch, rows)
    unused = torch.full((16, 40), -1, dtype=torch.int32)
    values = torch.full((16, 40), math.nan, dtype=batch.draft_logits.dtype)
    wider = batch.replace(
        dynamic_tokens=torch.cat([batch.dynamic_tokens, unused], 1),
        dynamic_logits=torch.cat([batch.dynamic_logits, values], 1),
    )
    for actual, same in zip(drafted(wider, rows), expected, strict=True):
        assert_same_bits(actual, same)


def test_the_number_of_threads_changes_nothing(batch: Batch) -> None:
    rows = torch.arange(16).repeat(20)
    one = (*drafted(batch, rows), *verified(batch))
    torch.set_num_threads(2)
    try:
        two = (*drafted(batch, rows), *verified(batch))
    finally:
        torch.set_num_threads(1)
    for actual, expected in zip(two, one, strict=True):
        assert_same_bits(actual, expected)


# ------------------------------------------------------------------------------------------ verify


def verified(batch: Batch) -> tuple[Tensor, Tensor]:
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    return tokens, num_accepted


def assert_same_result(batch: Batch, expected: tuple[Tensor, Tensor]) -> None:
    for actual, same in zip(verified(batch), expected, strict=True):
        assert_same_bits(actual, same)


def rows_of(batch: Batch, b: int) -> tuple[slice, slice]:
    """The draft rows and the target rows of one sequence."""
    begin, end = batch.draft_offsets[b : b + 2].tolist()
    return slice(begin, end), slice(begin + b, end + b + 1)


def alone(batch: Batch, b: int) -> Batch:
    draft, target = rows_of(batch, b)
    return batch.replace(
        target_logits=batch.target_logits[target],
        draft_logits=batch.draft_logits[draft],
        draft_token_ids=batch.draft_token_ids[draft],
        draft_offsets=torch.tensor([0, draft.stop - draft.start], dtype=torch.int32),
        target_temperature=batch.target_temperature[b : b + 1],
        draft_temperature=batch.draft_temperature[b : b + 1],
        step_keys=batch.step_keys[b : b + 1],
        positions=batch.positions[b : b + 1],
        dynamic_tokens=batch.dynamic_tokens[draft],
        dynamic_logits=batch.dynamic_logits[draft],
    )


def with_stats(batch: Batch) -> Batch:
    rows = batch.draft_logits.shape[0]
    zeros = torch.zeros(rows, dtype=torch.int64)
    _, stats = torch.ops.rdk.draft(
        batch.draft_logits,
        torch.full((rows,), float(batch.draft_temperature[0])),
        zeros,
        zeros,
        *batch.affinity.by_draft,
        batch.dynamic_tokens,
        batch.dynamic_logits,
    )
    return batch.replace(draft_stats=stats)


def test_a_sequence_alone_is_the_sequence_in_a_batch(batch: Batch) -> None:
    tokens, num_accepted = verified(batch)
    assert 0 < int(num_accepted.sum()) < sum(LENGTHS)
    for b in range(batch.size):
        assert_same_result(alone(batch, b), (tokens[b : b + 1], num_accepted[b : b + 1]))


def test_sequences_in_another_order(batch: Batch) -> None:
    order = torch.arange(batch.size).flip(0)
    parts = [alone(batch, int(b)) for b in order]

    def together(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    lengths = torch.tensor([part.draft_token_ids.numel() for part in parts])
    flipped = batch.replace(
        **{
            name: together(name)
            for name in (
                "target_logits",
                "draft_logits",
                "draft_token_ids",
                "target_temperature",
                "draft_temperature",
                "step_keys",
                "positions",
                "dynamic_tokens",
                "dynamic_logits",
            )
        },
        draft_offsets=torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(),
    )
    expected = verified(batch)
    assert_same_result(flipped, (expected[0][order], expected[1][order]))


def test_stats_passed_or_recomputed(batch: Batch) -> None:
    assert_same_result(with_stats(batch), verified(batch))


def test_padding_behind_the_last_offset(batch: Batch) -> None:
    """Fixed shapes for CUDA graphs: rows beyond the last offset are not looked at."""
    padded = batch.replace(
        target_logits=torch.cat([batch.target_logits, torch.full((9, 2600), math.nan)]).to(
            batch.target_logits.dtype
        ),
        draft_logits=torch.cat(
            [batch.draft_logits, torch.full((6, batch.affinity.draft_size), math.nan)]
        ).to(batch.draft_logits.dtype),
        draft_token_ids=torch.cat([batch.draft_token_ids, torch.full((6,), 2**40)]),
        dynamic_tokens=torch.cat(
            [batch.dynamic_tokens, torch.full((6, 7), 2**30, dtype=torch.int32)]
        ),
        dynamic_logits=torch.cat([batch.dynamic_logits, batch.dynamic_logits[:6]]),
    )
    assert_same_result(padded, verified(batch))


def test_an_arena_of_slots(batch: Batch) -> None:
    """`draft_rows` finds each draft's logits, stats and dynamic tokens in any slot."""
    drafts, slots = sum(LENGTHS), 40
    place = torch.randperm(slots, generator=generators.generator(4))[:drafts]
    for source in (batch, with_stats(batch)):
        arena = {}
        for name in ("draft_logits", "draft_stats", "dynamic_tokens", "dynamic_logits"):
            rows = getattr(source, name)
            if rows is not None:
                filler = math.nan if rows.is_floating_point() else 5
                arena[name] = rows.new_full((slots, *rows.shape[1:]), filler)
                arena[name][place] = rows
        moved = source.replace(**arena, draft_rows=place.int())
        assert_same_result(moved, verified(batch))


def test_a_padded_batch_whose_drafts_end_with_minus_one(batch: Batch) -> None:
    """The Python layer's layout: as many drafts in every sequence, unused ones -1."""
    width = max(LENGTHS)
    tokens = torch.full((batch.size, width), -1)
    rows = torch.full((batch.size, width), -1, dtype=torch.int32)
    target = torch.full((batch.size, width + 1, 2600), math.nan).to(batch.target_logits.dtype)
    for b, length in enumerate(LENGTHS):
        draft_rows, target_rows = rows_of(batch, b)
        tokens[b, :length] = batch.draft_token_ids[draft_rows]
        rows[b, :length] = torch.arange(draft_rows.start, draft_rows.stop)
        target[b, : length + 1] = batch.target_logits[target_rows]
    padded = batch.replace(
        target_logits=target.flatten(0, 1),
        draft_token_ids=tokens.flatten(),
        draft_rows=rows.flatten(),
        draft_offsets=torch.arange(batch.size + 1, dtype=torch.int32) * width,
    )
    assert_same_result(padded, verified(batch))


def test_slices_of_wider_rows(batch: Batch) -> None:
    expected = verified(batch)
    for before in range(5):
        sliced = batch.replace(
            target_logits=generators.in_wider_rows(batch.target_logits, before),
            draft_logits=generators.in_wider_rows(batch.draft_logits, before),
            dynamic_logits=generators.in_wider_rows(batch.dynamic_logits, before),
        )
        assert_same_result(sliced, expected)


def test_a_wider_output_only_gets_more_padding(batch: Batch) -> None:
    tokens, num_accepted = verified(batch)
    wide, same = verified(batch.replace(max_draft=batch.max_draft + 3))
    assert_same_bits(wide[:, : tokens.shape[1]], tokens)
    assert (wide[:, tokens.shape[1] :] == -1).all()
    assert_same_bits(same, num_accepted)


def test_32_bit_draft_tokens(batch: Batch) -> None:
    assert_same_result(batch.replace(draft_token_ids=batch.draft_token_ids.int()), verified(batch))


def test_another_seed_or_position_is_another_draw(batch: Batch) -> None:
    """The control: without it, a test of equality would pass on constants."""
    expected = verified(batch)
    for name in ("step_keys", "positions"):
        tokens, _ = verified(batch.replace(**{name: getattr(batch, name) + 1}))
        assert not torch.equal(tokens, expected[0])
