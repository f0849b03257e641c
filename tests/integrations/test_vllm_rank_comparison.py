"""Ranks of tensor parallelism that differ are found, on every rank, and said what differs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdk_cuda.integrations.vllm.rank_comparison import RanksDifferError, compare_ranks

HIDDEN = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([5, 2, 128_255, 0])


def on_all_ranks(what: str, values: list[Tensor]) -> set[str]:
    """What each rank's error says, or the empty string."""
    said = set()
    for own in values:
        try:
            compare_ranks(what, own, lambda given: torch.cat(values).to(given))
            said.add("")
        except RanksDifferError as error:
            said.add(str(error))
    return said


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("values", [HIDDEN, HIDDEN.bfloat16(), TOKENS, HIDDEN[:0], TOKENS[:0]])
def test_equal_ranks_pass(values: Tensor, ranks: int) -> None:
    values = values.clone()
    if values.is_floating_point():
        values[1:2, 3] = torch.nan
    assert on_all_ranks("values", [values] * ranks) == {""}


@pytest.mark.parametrize(
    ("what", "values", "by"),
    [
        ("hidden states", HIDDEN, 0.5),
        ("hidden states", HIDDEN.bfloat16(), 0.5),
        ("hidden states", HIDDEN, torch.nan),
        ("drafted tokens", TOKENS, 1),
    ],
)
def test_one_rank_that_differs_is_named_on_every_rank(what: str, values: Tensor, by: float) -> None:
    changed = values.clone()
    changed[1:3].view(2, -1)[:, -1] += by
    (said,) = on_all_ranks(what, [values, values, changed, values])
    distance = f"{abs(float(changed[1].flatten()[-1]) - float(values[1].flatten()[-1])):.3g}"
    assert f"the {what} of rank 2 differ from those of rank 0 in 2 of 4 rows" in said
    assert f"in row 1 by {distance};" in said
    assert "--disable-custom-all-reduce" in said
    assert "\n" not in said


def test_the_least_difference_is_found() -> None:
    """One bit of one number; a rounded comparison is the control."""
    changed = HIDDEN.clone()
    changed[3, 7] = torch.nextafter(changed[3, 7], torch.tensor(torch.inf))
    assert torch.allclose(changed, HIDDEN)
    assert on_all_ranks("hidden states", [HIDDEN, changed]) != {""}
