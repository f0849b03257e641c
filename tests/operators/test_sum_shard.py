"""`rdk::sum_shard` sums the chunks of a rank's columns as the reference does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators
from tests.generators import Batch

pytestmark = pytest.mark.usefixtures("device")

SIZE = 2 * 1024 + 13


def batch(dtype: torch.dtype = torch.float32) -> Batch:
    """Of any temperature, with a draft that ends, a token outside and rows without distribution."""
    made = generators.batch(
        generators.affinity("identity", SIZE), [3, 0, 1, 4, 2], dtype=dtype, forbidden=0.05
    )
    target, drafts = made.target_logits.clone(), made.draft_token_ids.clone()
    target[1, 3], target[5, 1030] = math.nan, math.inf
    target[6], target[8, 1024:2048] = -math.inf, -math.inf
    drafts[3], drafts[5], drafts[8] = SIZE, -1, 2**40
    temperature = torch.tensor([0.7, 1.0, math.nan, 0.0, 1.3])
    return made.replace(
        target_logits=target, draft_token_ids=drafts, target_temperature=temperature
    )


def arguments(batch: Batch, logits: Tensor, first: int) -> tuple[object, ...]:
    given = batch.draft_token_ids, batch.draft_offsets, batch.target_temperature
    return logits, *given, batch.max_draft, first, SIZE


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
def test_pairs_are_those_of_the_reference(dtype: torch.dtype) -> None:
    made = batch(dtype)
    for first, columns in ((0, SIZE), (0, 1024), (1, 1024), (1, SIZE - 1024), (2, 13), (3, 5)):
        logits = made.target_logits[:, 1024 * first : 1024 * first + columns]
        logits = logits if logits.shape[1] else made.target_logits[:, :columns]
        for rows in (logits, generators.in_wider_rows(logits)):
            found = torch.ops.rdk.sum_shard(*arguments(made, rows, first))
            exact = reference.sum_shard(*arguments(made, rows, first), dtype=torch.float64)
            none = exact.isnan().any(-1)
            assert torch.equal(found.isnan().any(-1), none)
            torch.testing.assert_close(
                found[~none].double(), exact[~none], rtol=1e-5, atol=1e-5, check_stride=False
            )
