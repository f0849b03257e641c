"""`rdk::gather_logits` is a few rows of a matrix product, accumulated in float32."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators
from tests.tolerances import assert_as_exact_as_torch

pytestmark = pytest.mark.usefixtures("device")


def assert_exact(hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None) -> Tensor:
    actual: Tensor = torch.ops.rdk.gather_logits(hidden, weight, tokens, bias)
    terms = None if bias is None else bias.abs()
    assert_as_exact_as_torch(
        actual,
        reference.gather_logits(hidden, weight, tokens, bias),
        reference.gather_logits(hidden, weight, tokens, bias, dtype=torch.float64),
        magnitude=reference.gather_logits(hidden.abs(), weight.abs(), tokens, terms),
    )
    return actual


@pytest.mark.fast_in_the_emulator(width=(257,))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 8, 31, 64, 255, 256, 257, 1000, 2049, 4096])
def test_every_dtype_and_width(width: int, dtype: torch.dtype) -> None:
    """Around vectors and warps; with a bias and without; ids outside of the head."""
    vocabulary = 200
    hidden = generators.logits(4, width, dtype=dtype)
    weight = generators.logits(vocabulary, width, seed=1, dtype=dtype, scale=0.1)
    bias = generators.logits(1, vocabulary, seed=2, dtype=dtype)[0]
    tokens = generators.dynamic_tokens(4, 70, vocabulary)
    outside = (tokens < 0) | (tokens >= vocabulary)
    assert outside.any()
    for given in (None, bias):
        actual = assert_exact(hidden, weight, tokens, given)
        assert actual.dtype == dtype
        assert (actual[outside] == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_results_round_to_the_nearest_even_of_16_bits(dtype: torch.dtype) -> None:
    """Midpoints between neighbours of either sign and every exponent, as PyTorch rounds them."""
    every = torch.arange(2**16).to(torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()].float().sort().values
    weight = torch.stack([finite[:-1], finite[1:]], 1)[::3]
    halves = torch.full((2,), 0.5, dtype=dtype)
    actual = torch.ops.rdk.gather_logits(halves, weight.to(dtype), torch.arange(len(weight)))
    assert torch.equal(actual, (0.5 * weight[:, 0] + 0.5 * weight[:, 1]).to(dtype))
