"""The fast exponential that sums of chunks are taken with is as exact as the suite asks of a sum.

The kernel's own sums are measured, `stats` of rows made for it, against float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests.tolerances import assert_as_exact_as_torch

from .stand_in import moved

SIZE = 1024  # one chunk: nothing but exponentials and their sum
DEPTHS = torch.cat([torch.linspace(0, 20, 201), torch.linspace(21, 110, 90)])


def one_value() -> Tensor:
    """A 0, and everything else at one depth below it: errors all of one sign would add up."""
    rows = -DEPTHS[:, None].expand(-1, SIZE).contiguous()
    rows[:, 0] = 0
    return rows


def ramps() -> Tensor:
    """From 0 down to each depth: every argument of the exponential, to its underflow."""
    return -DEPTHS[:, None] * torch.linspace(0, 1, SIZE)


@pytest.mark.parametrize("rows", [one_value, ramps])
def test_sums_of_a_chunk_against_float64(rows: Any, native: Any, device: torch.device) -> None:
    logits = rows()
    count = logits.shape[0]
    affinity = Affinity.intersection(Vocabulary.identity(SIZE))
    integers = torch.arange(count)
    given = (logits, torch.ones(count), integers, integers, *affinity.by_draft)
    stats = native.draft(*moved(given, device))[1].cpu()
    _, by_torch = reference.draft(*given)
    _, exact = reference.draft(*given, dtype=torch.float64)
    errors = ((stats[:, 1].double() - exact[:, 1]) / exact[:, 1]).abs()
    print(f"largest relative error of a sum: {float(errors.max()):.2e}")
    for column in range(stats.shape[1]):
        assert_as_exact_as_torch(stats[:, column], by_torch[:, column], exact[:, column])
