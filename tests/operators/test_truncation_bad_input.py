"""Limits and masks that do not fit: bad values have a result, and bad shapes an error."""

from __future__ import annotations

import math

import pytest
import torch

from tests import generators

BAD = [
    *({"top_k": k} for k in (-1, -(2**31))),
    *({"top_p": p} for p in (0.0, -0.5, 1.5, math.nan, math.inf)),
    *({"min_p": p} for p in (-1e-9, 1.5, math.nan)),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bad_limit_leaves_its_row_without_a_distribution(bad: dict[str, float]) -> None:
    batch = generators.batch(generators.affinity("identity", 100), [2, 2, 2], seed=3)
    ((name, value),) = bad.items()
    off = 1.0 if name == "top_p" else 0
    dtype = torch.int32 if name == "top_k" else torch.float32
    limits = batch.replace(**{name: torch.tensor([off, value, off], dtype=dtype)})
    tokens, accepted, _ = torch.ops.rdk.verify(*limits.arguments())
    plain = torch.ops.rdk.verify(*batch.arguments())[0]
    assert tokens[1].tolist() == [-1, -1, -1]
    assert accepted[1] == 0
    assert torch.equal(tokens[::2], plain[::2])
    greedy = limits.replace(target_temperature=torch.zeros(3))
    expected = batch.replace(target_temperature=torch.zeros(3))
    assert torch.equal(
        torch.ops.rdk.verify(*greedy.arguments())[0], torch.ops.rdk.verify(*expected.arguments())[0]
    )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("limit", [{"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_anywhere_in_a_large_row_leaves_it_without_a_distribution(
    bad: float, limit: dict[str, float]
) -> None:
    """Whether or not a sample of the row has it; and one column that is not bad is enough."""
    size, rows = 9000, 30
    batch = generators.batch(generators.affinity("identity", size), [0] * rows, scale=2.0)
    columns = torch.arange(rows) * 299 // 32 * 32
    batch.target_logits[20:] = -math.inf
    batch.target_logits[20:].scatter_(1, columns[20:, None], 1.5)
    batch.target_logits[:10].scatter_(1, columns[:10, None], bad)
    ((name, value),) = limit.items()
    dtype = torch.int32 if name == "top_k" else torch.float32
    limits = {name: torch.full((rows,), value, dtype=dtype)}
    tokens = torch.ops.rdk.verify(*batch.replace(**limits).arguments())[0][:, 0]
    assert (tokens[:10] == -1).all()
    assert (tokens[10:20] >= 0).all()
    assert torch.equal(tokens[20:], columns[20:].int())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("threshold", [math.nan, math.inf])
def test_a_draft_with_an_unusable_threshold_is_rejected(threshold: float) -> None:
    batch = generators.batch(generators.affinity("identity", 100), [1] * 20)
    rows = batch.draft_logits.shape[0]
    stats = torch.cat([torch.ones(rows, 2), torch.full((rows, 1), threshold)], 1)
    assert not torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[1].any()
