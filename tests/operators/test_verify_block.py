"""`rdk::verify` by block decides what the reference decides from the same random words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests import generators
from tests.generators import Batch
from tests.operators.test_verify import assert_verifies_as_the_reference, decisions, verified

pytestmark = pytest.mark.usefixtures("device")


def by_block(batch: Batch) -> Batch:
    return batch.replace(method=1)


# ------------------------------------------------------------------------- where a draft ends


def ended(batch: Batch, j: int, **changes: Tensor) -> None:
    """Whatever `changes` do at draft j, only what is before it can be accepted."""
    changed = by_block(batch).replace(**changes)
    tokens, num_accepted = verified(changed)
    assert int(num_accepted.max()) == j
    assert_verifies_as_the_reference(changed)
    assert (tokens[:, j + 1 :] == -1).all()


@pytest.mark.fast_in_the_emulator
def test_what_ends_a_draft() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 80), [4] * 24)
    drafts = batch.draft_token_ids.reshape(24, 4)

    def at_two(value: int, of: Tensor) -> Tensor:
        of = of.clone()
        of[:, 2] = value
        return of.flatten()

    rows = torch.arange(96, dtype=torch.int32).reshape(24, 4)
    unread = batch.target_logits.unflatten(0, (24, 5)).clone()
    unread[:, 3:] = math.nan
    for changes in (
        {"draft_token_ids": at_two(-1, drafts)},
        {"draft_token_ids": at_two(80, drafts)},
        {"draft_token_ids": at_two(-7, drafts)},
        {"draft_rows": at_two(96, rows)},
        {"draft_rows": at_two(-2, rows)},
    ):
        ended(batch, 2, **changes)
        # Nor is anything behind it read.
        ended(batch, 2, **changes, target_logits=unread.flatten(0, 1))
    expected = verified(by_block(batch).replace(draft_token_ids=at_two(-1, drafts)))
    for changes in ({"draft_token_ids": at_two(80, drafts)}, {"draft_rows": at_two(96, rows)}):
        assert all(map(torch.equal, verified(by_block(batch).replace(**changes)), expected))


@pytest.mark.fast_in_the_emulator
def test_a_target_row_without_distribution_ends_the_draft() -> None:
    """Shorter prefixes race on; if none of them wins, the output stops there without a token."""
    batch = by_block(generators.batch(generators.affinity("mixed-2", 80), [4] * 60))
    target = batch.target_logits.unflatten(0, (60, 5)).clone()
    target[:, 2, 7] = math.nan
    bad = batch.replace(target_logits=target.flatten(0, 1))
    assert_verifies_as_the_reference(bad)
    tokens, num_accepted = verified(bad)
    stopped = num_accepted == 2
    assert 0 < int(stopped.sum()) < 60
    assert (tokens[stopped, 2] == -1).all()
    assert (tokens[~stopped].gather(1, num_accepted[~stopped].long()[:, None]) >= 0).all()
    drafts = batch.draft_token_ids.reshape(60, 4).clone()
    drafts[:, 2] = -1
    without, accepted = verified(batch.replace(draft_token_ids=drafts.flatten()))
    assert torch.equal(accepted, num_accepted)
    assert torch.equal(without[~stopped], tokens[~stopped])


def test_a_token_that_the_target_forbids_is_never_put_out_by_block() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 40), [3] * 300)
    target = batch.target_logits.unflatten(0, (300, 4)).clone()
    second = batch.draft_token_ids.reshape(300, 3)[:, 1]
    target[torch.arange(300), 1, second] = -math.inf
    # What is behind a draft that cannot be accepted is not read.
    target[:, 2:] = math.nan
    batch = by_block(batch.replace(target_logits=target.flatten(0, 1)))
    assert_verifies_as_the_reference(batch)
    tokens, num_accepted = verified(batch)
    assert int(num_accepted.max()) == 1
    assert (tokens[:, 1] != second).all()


# ------------------------------------------------------------------------- the direct pass


@pytest.mark.not_on("small-batches")
def test_the_direct_pass_is_what_the_reference_does() -> None:
    """The first draft leaves a factor of 0.95, and the target forbids the second.

    Of the second row, 0.95 p exceeds q at token 0 only, but p at token 3, too.
    """
    sequences = 300
    q = torch.tensor([0.5, 0.02, 0.02, 0.4, 0.06])
    p = torch.tensor(
        [[0.501, 0.019, 0.02, 0.4, 0.06], [0.54, 0.02, 0.02, 0.42, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]
    )
    batch = generators.batch(generators.affinity("identity", 5), [2] * sequences)
    batch = batch.replace(
        target_logits=p.log().repeat(sequences, 1),
        draft_logits=q.log().repeat(2 * sequences, 1),
        draft_token_ids=torch.tensor([1, 4]).repeat(sequences),
    )
    trace = assert_verifies_as_the_reference(by_block(batch))
    assert decisions(trace, "give up")
    assert decisions(trace, "direct") > 20


# ------------------------------------------------------------------------- arguments and results


def test_the_python_layer_names_the_methods() -> None:
    affinity = generators.affinity("identity", 40)
    logits = generators.logits(60, 40, 3).unflatten(0, (20, 3))
    target = generators.logits(80, 40, 4).unflatten(0, (20, 4))
    draft = rdk_cuda.draft(logits, affinity, seeds=1, positions=0)
    by_token = rdk_cuda.verify(target, draft, affinity)
    assert torch.equal(rdk_cuda.verify(target, draft, affinity, method="token")[0], by_token[0])
    assert not torch.equal(rdk_cuda.verify(target, draft, affinity, method="block")[0], by_token[0])
    with pytest.raises(ValueError, match='method is \'blocks\'; needs "token" or "block"'):
        rdk_cuda.verify(target, draft, affinity, method="blocks")  # type: ignore[arg-type]
