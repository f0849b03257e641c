"""What "right" means in numbers. Every tolerance of the test suite is here, with how it is judged.

A float32 result is not compared with a loose constant: the same formula is computed in float64 (the
truth) and by PyTorch in float32 (what float32 can do on this very input), and an implementation may
be at most a small factor further from the truth than PyTorch is.
"""

from __future__ import annotations

import torch
from torch import Tensor

# PyTorch's own error is one draw from a distribution of rounding errors, so an equally good
# implementation with sums in another order may be a few times further away.
ERROR_FACTOR = 3.0

# Where PyTorch happens to be exact (a vocabulary of one token), an implementation may still round:
# this many units in the last place of the largest value, or of each value for relative errors.
ROUNDING_UNITS = 4.0

# Relative errors are compared down to here; below, a float32 probability loses bits by underflow.
SMALLEST_COMPARED = 1e-30

# The probabilities of a row add up to 1 but for their relative errors, a few roundings each.
SUM_TO_ONE = 1e-6

# Two implementations given the same random words may pick different tokens only where a uniform
# lies this close to a boundary between two outcomes, judged in float64 (DESIGN section 5) ...
BOUNDARY = 1e-5
# ... and that in fewer draws than this.
DISAGREEING_DRAWS = 5 / 10_000

# The probability that one statistical test fails although the implementation is right. The suite
# has fewer than a hundred, so a failure by chance in any of them has probability below 1e-4; with
# fixed seeds it can happen only once, when a seed or a random stream is changed.
FALSE_ALARM = 1e-6

# A negative control must be this far beyond doubt: its p-value at most this.
CERTAIN = 1e-12


def assert_as_exact_as_torch(
    actual: Tensor, by_torch: Tensor, exact: Tensor, magnitude: Tensor | None = None
) -> None:
    """Errors against float64, absolute and relative, are at most a few times PyTorch's own.

    Entries that are not finite have to be the same in all three. ``magnitude`` is what an error is
    relative to: by default the value itself; of a sum whose terms may cancel, that of its terms.
    """
    assert actual.dtype == by_torch.dtype
    assert actual.shape == by_torch.shape == exact.shape
    finite = exact.isfinite()
    torch.testing.assert_close(
        actual.double()[~finite], exact[~finite], rtol=0, atol=0, equal_nan=True
    )
    truth = exact[finite]
    size = truth.abs() if magnitude is None else magnitude.double()[finite]
    errors = [(t.double()[finite] - truth).abs() for t in (actual, by_torch)]
    unit = ROUNDING_UNITS * torch.finfo(actual.dtype).eps
    for kind, weight in (("absolute", torch.ones_like(truth)), ("relative", size)):
        compared = weight > SMALLEST_COMPARED
        if not compared.any():
            continue
        ours, torchs = (float((error / weight)[compared].max()) for error in errors)
        allowed = ERROR_FACTOR * torchs + unit * float((size / weight)[compared].max())
        assert ours <= allowed, (
            f"{kind} error {ours:.3g} is more than the allowed {allowed:.3g} "
            f"(PyTorch's own is {torchs:.3g})"
        )


def same_bits(one: Tensor, other: Tensor) -> Tensor:
    """Where values are equal, NaN to NaN."""
    return (one == other) | ((one != one) & (other != other))


def assert_same_bits(
    actual: Tensor | tuple[Tensor, ...], expected: Tensor | tuple[Tensor, ...], of: object = ""
) -> None:
    """Of all outputs, naming the first difference; `of` says which."""
    pair = (t if isinstance(t, tuple) else (t,) for t in (actual, expected))
    for number, (one, other) in enumerate(zip(*pair, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"output {number} {of}"
        different = ~same_bits(one, other)
        assert not different.any(), f"output {number} {of}: at {different.nonzero()[0].tolist()}"


def assert_same_draws(actual: Tensor, expected: Tensor, margins: Tensor) -> None:
    """The tokens of each row are the same but for rare boundary cases.

    Args:
        actual, expected: integers ``[rows]`` or ``[rows, width]``.
        margins: `reference.Trace.margins`, float64 ``[rows]``.
    """
    assert actual.shape == expected.shape
    different = actual != expected
    if different.dim() == 2:
        different = different.any(1)
    unexcused = different & (margins > BOUNDARY)
    assert not unexcused.any(), (
        f"rows {unexcused.nonzero().flatten().tolist()[:10]} differ away from any boundary: "
        f"got {actual[unexcused][:3].tolist()}, expected {expected[unexcused][:3].tolist()}, "
        f"margins {margins[unexcused][:3].tolist()}"
    )
    assert int(different.sum()) <= max(1, DISAGREEING_DRAWS * different.numel())
