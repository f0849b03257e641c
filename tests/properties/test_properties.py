"""Whatever the affinity, shape, stride and dtype: the operators are the reference.

On the CPU and in the emulator.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests.generators import Batch
from tests.operators.test_verify import assert_verifies_as_the_reference
from tests.tolerances import SUM_TO_ONE, assert_as_exact_as_torch, assert_same_draws

from .strategies import affinities, batches, draft_arguments, examples

pytestmark = [pytest.mark.night, pytest.mark.usefixtures("device")]


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
