"""The gather_logits kernel is a few rows of a matrix product, accumulated in float32."""

from __future__ import annotations

import pytest
import torch

from tests import generators
from tests.reference.test_gather_logits import *  # noqa: F403
from tests.reference.test_gather_logits import assert_exact

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("width", [8, 31, 255, 256, 257, 2049])
def test_widths_around_vectors_and_warps(width: int, dtype: torch.dtype) -> None:
    hidden = generators.logits(3, width, dtype=dtype)
    weight = generators.logits(50, width, seed=1, dtype=dtype)
    assert_exact(hidden, weight, generators.dynamic_tokens(3, 70, 50), None)


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
def test_rows_at_every_alignment(dtype: torch.dtype) -> None:
    hidden = generators.logits(3, 300, dtype=dtype)
    weight = generators.logits(50, 300, seed=1, dtype=dtype)
    tokens = generators.dynamic_tokens(3, 20, 50)
    expected = torch.ops.rdk.gather_logits(hidden, weight, tokens)
    for before in range(9):
        for after in (8 - before, 13):
            actual = torch.ops.rdk.gather_logits(
                generators.in_wider_rows(hidden, before, after),
                generators.in_wider_rows(weight, before, after),
                tokens,
            )
            assert torch.equal(actual, expected)


def test_results_round_to_the_nearest_even_of_16_bits() -> None:
    """Midpoints between neighbours of either sign and every exponent, as PyTorch rounds them."""
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(2**16).to(torch.int32).to(torch.int16).view(dtype)
        finite = every[every.isfinite()].float().sort().values
        weight = torch.stack([finite[:-1], finite[1:]], 1)[::3]
        halves = torch.full((2,), 0.5, dtype=dtype)
        tokens = torch.arange(weight.shape[0])
        actual = torch.ops.rdk.gather_logits(halves, weight.to(dtype), tokens)
        expected = (0.5 * weight[:, 0] + 0.5 * weight[:, 1]).to(dtype)
        assert torch.equal(actual, expected)
