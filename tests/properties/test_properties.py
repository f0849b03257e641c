"""Whatever the affinity, shape, stride and dtype: the operators are the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests.generators import Batch
from tests.operators.test_invariance import assert_same_bits, assert_same_result, verified
from tests.operators.test_verify import assert_verifies_as_the_reference
from tests.tolerances import SUM_TO_ONE, assert_as_exact_as_torch, assert_same_draws

from .strategies import (
    affinities,
    batches,
    draft_arguments,
    examples,
)

pytestmark = pytest.mark.slow


@examples
@given(st.data())
def test_redistribute_is_the_reference(data: st.DataObject) -> None:
    affinity = data.draw(affinities())
    logits, temperature, *_, tokens, values = data.draw(draft_arguments(affinity))
    arguments = (logits, temperature, *affinity.by_target, affinity.row_top, tokens, values)
    actual = torch.ops.rdk.redistribute(*arguments)
    exact = reference.redistribute(*arguments, dtype=torch.float64)
    assert_as_exact_as_torch(actual, reference.redistribute(*arguments), exact)
    assert ((actual.double().sum(-1) - 1).abs() < SUM_TO_ONE).all()


@examples
@given(st.data())
def test_redistribute_is_the_dense_product(data: st.DataObject) -> None:
    """Section 2 as it is written, with `A` as a matrix, for static columns alone."""
    affinity = data.draw(affinities(large=False))
    logits, temperature, *_ = data.draw(draft_arguments(affinity))
    temperature = temperature.clamp(min=0.4)
    q = torch.ops.rdk.redistribute(logits, temperature, *affinity.by_target, affinity.row_top)
    z = logits.double() / temperature.double().unsqueeze(-1) + affinity.bias.double()
    torch.testing.assert_close(
        q.double(), torch.softmax(z, -1) @ affinity.dense(), rtol=2e-5, atol=1e-7
    )


@examples
@given(st.data())
def test_draft_draws_as_the_reference(data: st.DataObject) -> None:
    arguments = data.draw(draft_arguments(data.draw(affinities())))
    tokens, stats = torch.ops.rdk.draft(*arguments)
    trace = reference.Trace()
    expected, exact = reference.draft(*arguments, dtype=torch.float64, trace=trace)
    assert_same_draws(tokens.flatten(), expected.flatten(), trace.margins(tokens.numel()))
    _, by_torch = reference.draft(*arguments)
    assert_as_exact_as_torch(stats, by_torch, exact)


@examples
@given(batches())
def test_verify_decides_as_the_reference(batch: Batch) -> None:
    assert_verifies_as_the_reference(batch)


@examples
@given(st.data())
def test_rows_have_the_same_bits_in_one_call_and_alone(data: st.DataObject) -> None:
    arguments = data.draw(draft_arguments(data.draw(affinities())))
    logits, temperature, seeds, positions, *rows, tokens, values = arguments
    together = torch.ops.rdk.draft(*arguments)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in temperature.shape if size)
    if len(index) < temperature.dim():
        return  # there is no row
    alone = torch.ops.rdk.draft(
        *(tensor[index] for tensor in (logits, temperature, seeds, positions)),
        *rows,
        *(None if tensor is None else tensor[index] for tensor in (tokens, values)),
    )
    for actual, expected in zip(alone, together, strict=True):
        assert_same_bits(actual, expected[index])


# -------------------------------------------------------------------------- other forms of a batch


def sequence_of_drafts(batch: Batch) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(batch.size), batch.draft_offsets.diff())


@examples
@given(batches())
def test_stats_passed_or_computed_again_give_the_same_bits(batch: Batch) -> None:
    zeros = torch.zeros(batch.draft_logits.shape[0], dtype=torch.int64)
    _, stats = torch.ops.rdk.draft(
        batch.draft_logits,
        batch.draft_temperature[sequence_of_drafts(batch)],
        zeros,
        zeros,
        *batch.affinity.by_draft,
        batch.dynamic_tokens,
        batch.dynamic_logits,
    )
    assert_same_result(batch.replace(draft_stats=stats), verified(batch))


@examples
@given(batches())
def test_packed_and_padded_give_the_same_bits(batch: Batch) -> None:
    """Padded: as many drafts in every sequence, those that are not there -1, their rows NaN."""
    width, drafts = batch.max_draft, torch.arange(batch.draft_token_ids.numel())
    sequence = sequence_of_drafts(batch)
    ahead = drafts - batch.draft_offsets[sequence]
    tokens = torch.full((batch.size, width), -1)
    tokens[sequence, ahead] = batch.draft_token_ids
    rows = torch.full((batch.size, width), 2**30, dtype=torch.int32)
    rows[sequence, ahead] = drafts.int()
    target = batch.target_logits.new_full(
        (batch.size, width + 1, batch.target_logits.shape[1]), math.nan
    )
    target[sequence, ahead] = batch.target_logits[drafts + sequence]
    last = batch.draft_offsets[1:] + torch.arange(batch.size)
    target[torch.arange(batch.size), batch.draft_offsets.diff()] = batch.target_logits[last]
    padded = batch.replace(
        target_logits=target.flatten(0, 1),
        draft_token_ids=tokens.flatten(),
        draft_rows=rows.flatten(),
        draft_offsets=torch.arange(batch.size + 1, dtype=torch.int32) * width,
    )
    assert_same_result(padded, verified(batch))
