"""`rdk::verify` by block decides what the reference decides from the same random words."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.generators import Batch
from tests.operators.test_verify import assert_verifies_as_the_reference, decisions, verified

pytestmark = pytest.mark.usefixtures("device")


def by_block(batch: Batch) -> Batch:
    return batch.replace(method=1)


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*generators.AFFINITIES, "mixed-4"])
def test_every_affinity_and_dtype_by_block(kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    for dynamic, forbidden in ((0, 0.0), (9, 0.1)):
        batch = generators.batch(
            affinity,
            [3, 0, 1, 5, 2] * 4,
            dtype=dtype,
            target_temperature=0.8,
            draft_temperature=1.2,
            dynamic=dynamic,
            forbidden=forbidden,
        )
        trace = assert_verifies_as_the_reference(by_block(batch))
        for name in ("go on", "keep", "race"):
            assert decisions(trace, name)


@pytest.mark.parametrize("size", [1, 2, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-3"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    batch = generators.batch(generators.affinity(kind, size), [2, 0, 3], dynamic=5)
    assert_verifies_as_the_reference(by_block(batch))


@pytest.mark.parametrize("lengths", [[], [0], [4], [1, 0, 2], [k % 4 for k in range(99)]])
def test_batch_sizes(lengths: list[int]) -> None:
    batch = generators.batch(generators.affinity("mixed-2", 111), lengths, dynamic=3)
    assert_verifies_as_the_reference(by_block(batch))


@pytest.mark.not_on("large-batches", "small-batches")
@pytest.mark.ci
def test_four_thousand_sequences_by_block() -> None:
    batch = generators.batch(
        generators.affinity("mixed-2", 60), [4, 1, 3, 2] * 1000, dynamic=3, draft_temperature=0.9
    )
    assert_verifies_as_the_reference(by_block(batch))


@pytest.mark.fast_in_the_emulator(draft_temperature=(0.6,))
@pytest.mark.parametrize("draft_temperature", [0.0, 0.6])
def test_a_greedy_target_decides_by_block_as_by_token(draft_temperature: float) -> None:
    batch = generators.batch(
        generators.affinity("virtual", 300),
        [3] * 60,
        dtype=torch.bfloat16,
        target_temperature=0.0,
        draft_temperature=draft_temperature,
        dynamic=5,
    )
    greedy = batch.target_logits.float().argmax(1).reshape(60, 4)
    random = generators.generator(5)
    right = torch.rand(60, 3, generator=random) < 0.7
    drafts = torch.where(right, greedy[:, :3], torch.randint(0, 300, (60, 3), generator=random))
    batch = batch.replace(draft_token_ids=drafts.flatten())
    by_token = verified(batch)
    assert 0 < int(by_token[1].sum()) < 180
    assert all(map(torch.equal, verified(by_block(batch)), by_token))


def test_a_one_hot_draft_by_block() -> None:
    """Temperature 0, and drafts without a distribution, which need no drafter logits at all."""
    batch = by_block(
        generators.batch(generators.affinity("mixed-1", 40), [3] * 200, draft_temperature=0.0)
    )
    trace = assert_verifies_as_the_reference(batch)
    assert decisions(trace, "keep")
    expected = verified(batch)
    without = batch.replace(
        draft_logits=batch.draft_logits[:0],
        draft_rows=torch.full((600,), -1, dtype=torch.int32),
        draft_temperature=torch.full((200,), 0.7),
    )
    assert all(map(torch.equal, verified(without), expected))


def test_a_draft_equal_to_the_target_is_accepted_whole() -> None:
    affinity = generators.affinity("identity", 50)
    batch = generators.batch(affinity, [6] * 40)
    target = torch.zeros(7 * 40, 50).unflatten(0, (40, 7))
    target[:, :6] = batch.draft_logits.unflatten(0, (40, 6))
    batch = by_block(batch.replace(target_logits=target.flatten(0, 1)))
    _, num_accepted = verified(batch)
    assert (num_accepted == 6).all()


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


@pytest.mark.parametrize("max_draft", [0, 1, 3, 9])
def test_only_the_first_max_draft_tokens_are_considered(max_draft: int) -> None:
    batch = generators.batch(generators.affinity("mixed-1", 40), [4, 2, 0, 5] * 20)
    assert_verifies_as_the_reference(by_block(batch).replace(max_draft=max_draft))


# ------------------------------------------------------------------------- the direct pass


def nearly_equal(missing: float, sequences: int) -> Batch:
    """p and q differ by `missing` in total variation at every position but the last."""
    size = 12
    affinity = Affinity.intersection(Vocabulary.identity(size))
    batch = generators.batch(affinity, [2] * sequences, scale=1.0)
    q = torch.softmax(batch.draft_logits.double(), 1).unflatten(0, (sequences, 2))
    p = torch.zeros(sequences, 3, size, dtype=torch.float64)
    p[:, :2] = q
    p[:, 2] = 1 / size
    p[:, 0, 3] += missing * q[:, 0, 5]
    p[:, 0, 5] *= 1 - missing
    p[:, 1, 2] += missing * q[:, 1, 4]
    p[:, 1, 4] *= 1 - missing
    drafts = batch.draft_token_ids.reshape(sequences, 2).clone()
    drafts[:, 0], drafts[:, 1] = 5, 4
    return by_block(
        batch.replace(target_logits=p.log().float().flatten(0, 1), draft_token_ids=drafts.flatten())
    )


def test_the_direct_pass_is_what_the_reference_does() -> None:
    batch = nearly_equal(0.02, 800)
    trace = assert_verifies_as_the_reference(batch)
    assert decisions(trace, "give up")
    assert decisions(trace, "direct")


# ------------------------------------------------------------------------- arguments and results


@pytest.mark.parametrize("method", [-1, 2])
def test_an_unknown_method_is_refused(method: int) -> None:
    batch = generators.batch(generators.affinity("identity", 40), [1])
    with pytest.raises(RuntimeError, match=rf"rdk::verify: method is {method}, but needs 0, by"):
        torch.ops.rdk.verify(*batch.replace(method=method).arguments())


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
