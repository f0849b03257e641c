"""Verification with a mask, top-k, top-p, min-p and log-probabilities, against masking first."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import reference
from rdk_cuda.reference import truncation
from tests import generators
from tests.devices import MACHINES
from tests.generators import Batch
from tests.tolerances import BOUNDARY, assert_same_draws

from .masked_first import masked_first
from .truncated_batches import random_batch

# Rounding may keep other tokens than float64 in fewer sequences than this.
OTHERS = 0.002

METHODS = [0, 1]  # by token, by block


def first_rows(batch: Batch) -> Tensor:
    return batch.draft_offsets[:-1] + torch.arange(batch.size)


def limits_of(batch: Batch, b: int) -> truncation.Limits:
    return truncation.Limits.of(batch.top_k, batch.top_p, batch.min_p, b)


def masked(batch: Batch) -> tuple[Batch, Tensor]:
    """The same with masked logits in place of arguments, and which sequences keep other tokens.

    They may only where a membership is near its boundary.
    """
    rows = batch.target_logits.shape[0]
    sequence = torch.searchsorted(first_rows(batch), torch.arange(rows), right=True) - 1

    def of_rows(given: Tensor | None, off: float) -> Tensor:
        return torch.full((rows,), off) if given is None else given[sequence]

    t = batch.target_temperature[sequence]
    top_k, top_p = of_rows(batch.top_k, 0), of_rows(batch.top_p, 1.0)
    found = masked_first(
        batch.target_logits, t, top_k, top_p, of_rows(batch.min_p, 0.0), batch.allowed
    )
    other = torch.zeros(batch.size, dtype=torch.bool)
    for row in range(rows):
        words = None if batch.allowed is None else batch.allowed[row]
        z = truncation.without_forbidden(batch.target_logits[row], words).float() / (t[row] or 1)
        if t[row] > 0 and z.max() > -math.inf:
            kept = z >= truncation.threshold(z, limits_of(batch, int(sequence[row])))
            different = not torch.equal(kept & (z > -math.inf), found.logits[row] > -math.inf)
            assert found.near[row] or not different
            other[sequence[row]] |= different
    none = dict.fromkeys(("top_k", "top_p", "min_p", "allowed"))
    return batch.replace(target_logits=found.logits, logprobs=0, **none), other


def assert_verifies_as_if_masked_first(seeds: range, method: int) -> None:
    sequences = other_tokens_kept = 0
    for seed in seeds:
        batch = random_batch(seed).replace(method=method)
        tokens, accepted, logprobs = torch.ops.rdk.verify(*batch.arguments())
        trace = reference.Trace()
        exact = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
        margins = trace.margins(batch.size)
        assert_same_draws(tokens, exact[0], margins)
        assert_same_draws(accepted, exact[1], margins)
        same = (tokens == exact[0]).all(1)
        if batch.logprobs:
            torch.testing.assert_close(
                logprobs[same].double(), exact[2][same], rtol=1e-6, atol=1e-5, equal_nan=True
            )
        before, other = masked(batch)
        trace = reference.Trace()
        expected = reference.verify(*before.arguments(), dtype=torch.float64, trace=trace)
        clear = ~other & (trace.margins(batch.size) > BOUNDARY)
        different = (tokens != expected[0]).any(1) | (accepted != expected[1])
        assert not (different & clear).any(), f"seed {seed}: {tokens} is not {expected[0]}"
        sequences += batch.size
        other_tokens_kept += int(other.sum())
    assert other_tokens_kept <= OTHERS * sequences, (other_tokens_kept, sequences)


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
def test_every_backend_gives_the_tokens_of_masking_first(device: str, method: int) -> None:
    """And those of the reference, whose log-probabilities are within 1e-5."""
    assert_verifies_as_if_masked_first(range(30 if device in MACHINES else 120), method)


@pytest.mark.ci
@pytest.mark.parametrize("method", METHODS)
def test_every_backend_gives_the_tokens_of_masking_first_in_many_cases(
    device: str, method: int
) -> None:
    """Fewer of them in the emulator, which is slow."""
    assert_verifies_as_if_masked_first(range(6000, 6250 if device in MACHINES else 6500), method)


@pytest.mark.usefixtures("device")
def test_a_mask_of_everything_and_limits_that_are_off_change_no_bit() -> None:
    batch = generators.batch(generators.affinity("virtual", 2500), [3, 0, 2] * 5, dynamic=9)
    count, size = batch.size, batch.target_logits.shape[1]
    off = batch.replace(
        top_k=torch.zeros(count, dtype=torch.int32), top_p=torch.ones(count),
        min_p=torch.zeros(count), logprobs=1,
    )  # fmt: skip
    expected = torch.ops.rdk.verify(*batch.replace(logprobs=1).arguments())
    every = torch.full((batch.target_logits.shape[0], -(-size // 32)), -1, dtype=torch.int32)
    wide = torch.full((count,), size, dtype=torch.int32)
    few = batch.replace(target_logits=batch.target_logits.clone(), logprobs=1)
    few.target_logits[:, 40:] = -math.inf
    few_off = few.replace(top_k=torch.full((count,), 41, dtype=torch.int32))
    for temperature in (1.0, 0.7):
        warm = {"target_temperature": torch.full((count,), temperature)}
        for actual, one in zip(
            torch.ops.rdk.verify(*few_off.replace(**warm).arguments()),
            torch.ops.rdk.verify(*few.replace(**warm).arguments()),
            strict=True,
        ):
            assert torch.equal(actual, one)
    for same in (off, off.replace(allowed=every), off.replace(top_k=wide)):
        for actual, one in zip(torch.ops.rdk.verify(*same.arguments()), expected, strict=True):
            assert torch.equal(actual, one)


def assert_raw(logprobs: Tensor, batch: Batch, tokens: Tensor) -> None:
    """They are those of the target's own logits; where there is no token, -infinity."""
    rows = first_rows(batch)[:, None] + torch.arange(batch.max_draft + 1)
    rows = rows.clamp(max=batch.target_logits.shape[0] - 1)
    log_p = batch.target_logits.double().log_softmax(1)[rows, tokens.clamp(min=0)]
    expected = log_p.masked_fill(tokens == -1, -math.inf)
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("device")
def test_raw_log_probabilities_at_temperature_1_know_nothing_of_the_limits() -> None:
    """There the row that is cut is the raw one, but for what is cut."""
    batch = generators.batch(generators.affinity("identity", 1500), [2, 0, 1] * 4)
    batch = batch.replace(
        target_temperature=torch.ones_like(batch.target_temperature),
        top_k=torch.full(batch.target_temperature.shape, 5, dtype=torch.int32),
        logprobs=2,
    )
    tokens, _, logprobs = torch.ops.rdk.verify(*batch.arguments())
    assert_raw(logprobs, batch, tokens)


@pytest.mark.usefixtures("device")
def test_the_direct_pass_keeps_to_the_limits() -> None:
    """q has 3 % on a token that p forbids, and nothing on the second half, which min-p leaves out.

    So 38 % of the sequences need the direct pass. A quarter of what it would find without limits is
    in the second half.
    """
    size, sequences = 1100, 60
    batch = generators.batch(generators.affinity("identity", size), [1] * sequences)
    logits, target = batch.draft_logits.clamp(-1, 2), batch.target_logits.clone()
    logits[:, size // 2 :] = -4.0
    target[0::2] = logits
    target[0::2, 5] = -math.inf
    logits[:, size // 2 :] = -math.inf
    logits[:, 5] = logits.logsumexp(1) + math.log(0.03)
    proposed = torch.full((sequences,), 5)
    batch = batch.replace(target_logits=target, draft_logits=logits, draft_token_ids=proposed)
    masked = target.masked_fill(target == -4.0, -math.inf)
    expected = torch.ops.rdk.verify(*batch.replace(target_logits=masked).arguments())[0]
    limits = {"min_p": torch.full((sequences,), 0.01)}
    tokens = torch.ops.rdk.verify(*batch.replace(**limits).arguments())[0]
    assert torch.equal(tokens[:, 0], expected[:, 0])
    assert int(expected[:, 0].max()) < size // 2


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_log_probabilities_alone() -> None:
    batch = generators.batch(generators.affinity("identity", 1500), [2, 0, 1] * 4)
    plain = torch.ops.rdk.verify(*batch.arguments())
    for which in (1, 2):
        tokens, accepted, logprobs = torch.ops.rdk.verify(
            *batch.replace(logprobs=which).arguments()
        )
        assert torch.equal(tokens, plain[0])
        assert torch.equal(accepted, plain[1])
        assert_raw(logprobs, batch, tokens)


def test_the_python_layer_spreads_one_number_over_the_batch() -> None:
    affinity = generators.affinity("virtual", 300)
    drafts = rdk_cuda.draft(
        generators.logits(4, affinity.draft_size).unsqueeze(1), affinity, seeds=3, positions=0
    )
    target = generators.logits(8, 300, 1).view(4, 2, 300)
    one = rdk_cuda.verify(target, drafts, affinity, 0.8, top_k=9, top_p=0.9, min_p=0.01)
    each = rdk_cuda.verify(
        target, drafts, affinity, 0.8, top_k=[9] * 4, top_p=[0.9] * 4, min_p=torch.full((4,), 0.01)
    )
    assert torch.equal(one.tokens, each.tokens)
    assert one.logprobs.shape == (0,)
    kept = target.topk(9).indices
    last = one.tokens.gather(1, one.num_accepted[:, None].long())
    assert (kept[torch.arange(4), one.num_accepted.long()] == last).any(1).all()
