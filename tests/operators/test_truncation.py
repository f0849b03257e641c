"""Drafts, verification and trees inside of top-k, top-p, min-p and masks are the reference's.

Their tokens are those of masking first: test_many_truncations.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda._ops.contract import LIMITS, OPERATORS
from tests import generators
from tests.devices import MACHINES
from tests.generators import Batch
from tests.proof.fuzz import calls
from tests.proof.fuzz.judge import refusals
from tests.proof.fuzz.promises import check
from tests.proof.fuzz.worker import run

SIZES = [1, 2, 31, 33, 100, 1023, 1025, 2500]
LIMITED = [operator for operator in OPERATORS if "top_k" in OPERATORS[operator].tensors]


@pytest.mark.fast_in_the_emulator
@pytest.mark.filterwarnings("ignore:Affinity.first_order")
@pytest.mark.parametrize("operator", LIMITED)
@pytest.mark.parametrize("begin", [0, pytest.param(1000, marks=pytest.mark.ci)])
def test_truncated_calls_are_those_of_the_reference(
    operator: str, begin: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer's, of larger vocabularies than it has; a draft's threshold to the bit."""
    monkeypatch.setattr(calls, "TARGET_SIZES", SIZES)
    count = (150 if device in MACHINES else 400) * (5 if begin else 1)
    compared = 0
    for index in range(begin, begin + count):
        call = calls.make_call(7, index, (operator,), without=frozenset(range(3)))
        given = call.arguments
        limited = any(given.get(name) is not None for name in (*LIMITS, "allowed"))
        if limited and not refusals(operator, given):
            check(operator, given, run(getattr(torch.ops.rdk, operator), call), True)
            compared += 1
    assert compared > count / 5


# ------------------------------------------------------------------------------ limits that are off


@pytest.mark.usefixtures("device")
def test_a_mask_of_everything_and_limits_that_are_off_change_no_bit() -> None:
    batch = generators.batch(generators.affinity("virtual", 2500), [3, 0, 2] * 5, dynamic=9)
    batch, count, size = batch.replace(logprobs=1), batch.size, batch.target_logits.shape[1]
    few = batch.replace(target_logits=batch.target_logits.clone())
    few.target_logits[:, 40:] = -math.inf
    every = torch.full((batch.target_logits.shape[0], -(-size // 32)), -1, dtype=torch.int32)

    def all_of(top_k: int) -> Tensor:
        return torch.full((count,), top_k, dtype=torch.int32)

    off = {"top_k": all_of(0), "top_p": torch.ones(count), "min_p": torch.zeros(count)}
    same = [(few, {"top_k": all_of(41)}), (batch, off), (batch, off | {"allowed": every})]
    for plain, limits in (*same, (batch, off | {"top_k": all_of(size)})):
        for temperature in (1.0, 0.7):
            warm = plain.replace(target_temperature=torch.full((count,), temperature))
            found = torch.ops.rdk.verify(*warm.replace(**limits).arguments())
            assert all(map(torch.equal, found, torch.ops.rdk.verify(*warm.arguments())))


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_a_row_of_drafts_that_is_not_truncated_has_the_same_bits() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 2500), [3] * 5, dynamic=9)
    rows = torch.arange(batch.draft_logits.shape[0])
    dynamic = batch.dynamic_tokens, batch.dynamic_logits
    ones = torch.ones(len(rows))
    draft = (batch.draft_logits, ones, rows, rows, *batch.affinity.by_draft, *dynamic)
    plain = torch.ops.rdk.draft(*draft)
    off = torch.ops.rdk.draft(*draft, torch.zeros(len(rows), dtype=torch.int32))
    assert torch.equal(plain[0], off[0])
    assert torch.equal(plain[1], off[1][:, :-1])
    assert (off[1][:, -1] == -math.inf).all()
    verified = [
        torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[0]
        for _, stats in (plain, off)
    ]
    assert torch.equal(*verified)


@pytest.mark.fast_in_the_emulator
@pytest.mark.not_on("small-batches")
@pytest.mark.usefixtures("device")
def test_at_temperature_zero_many_rows_have_the_q_that_they_have_without_limits() -> None:
    """Blocks that share rows look at each of them before and behind the search for its cut."""
    rows, affinity = 400, generators.affinity("mixed-2", 300)
    logits = generators.logits(rows, affinity.draft_size)
    given = (logits, torch.zeros(rows), *affinity.by_target, affinity.row_top)
    limited = torch.ops.rdk.redistribute(*given, top_k=torch.full((rows,), 2, dtype=torch.int32))
    assert torch.equal(limited, torch.ops.rdk.redistribute(*given))


# ------------------------------------------------------------------------------- log-probabilities


def assert_raw(logprobs: Tensor, batch: Batch, tokens: Tensor) -> None:
    """They are those of the target's own logits; where there is no token, -infinity."""
    first = batch.draft_offsets[:-1] + torch.arange(batch.size)
    rows = first[:, None] + torch.arange(batch.max_draft + 1)
    rows = rows.clamp(max=batch.target_logits.shape[0] - 1)
    log_p = batch.target_logits.double().log_softmax(1)[rows, tokens.clamp(min=0)]
    expected = log_p.masked_fill(tokens == -1, -math.inf)
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_log_probabilities_change_no_token_and_raw_ones_know_nothing_of_the_limits() -> None:
    """Also at temperature 1, where the row that is cut is the raw one, but for what is cut."""
    batch = generators.batch(generators.affinity("identity", 1500), [2, 0, 1] * 4)
    five = torch.full(batch.target_temperature.shape, 5, dtype=torch.int32)
    for limits, kinds in (({}, (1, 2)), ({"top_k": five}, (2,))):
        plain = torch.ops.rdk.verify(*batch.replace(**limits).arguments())
        for which in kinds:
            given = batch.replace(logprobs=which, **limits)
            tokens, accepted, logprobs = torch.ops.rdk.verify(*given.arguments())
            assert torch.equal(tokens, plain[0])
            assert torch.equal(accepted, plain[1])
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


def test_the_python_layer_spreads_one_number_over_the_batch() -> None:
    affinity = generators.affinity("virtual", 300)
    drafts = rdk_cuda.draft(
        generators.logits(4, affinity.draft_size).unsqueeze(1), affinity, seeds=3, positions=0
    )
    target = generators.logits(8, 300, 1).view(4, 2, 300)
    one = rdk_cuda.verify(target, drafts, affinity, 0.8, top_k=9, top_p=0.9, min_p=0.01)
    each = {"top_k": [9] * 4, "top_p": [0.9] * 4, "min_p": torch.full((4,), 0.01)}
    assert torch.equal(one.tokens, rdk_cuda.verify(target, drafts, affinity, 0.8, **each).tokens)
    assert one.logprobs.shape == (0,)
    last = one.tokens.gather(1, one.num_accepted[:, None].long())
    kept = target.topk(9).indices[torch.arange(4), one.num_accepted.long()]
    assert (kept == last).any(1).all()


# -------------------------------------------------------------------------------------- bad values


BAD = [
    *(("top_k", k) for k in (-1, -(2**31))),
    *(("top_p", p) for p in (0.0, -0.5, 1.5, math.nan, math.inf)),
    *(("min_p", p) for p in (-1e-9, 1.5, math.nan)),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_limit_leaves_its_row_without_a_distribution(name: str, value: float) -> None:
    """But at temperature 0, which knows no limits."""
    batch = generators.batch(generators.affinity("identity", 100), [2, 2, 2], seed=3)
    off = 1.0 if name == "top_p" else 0
    dtype = torch.int32 if name == "top_k" else torch.float32
    limits = batch.replace(**{name: torch.tensor([off, value, off], dtype=dtype)})
    tokens, accepted, _ = torch.ops.rdk.verify(*limits.arguments())
    assert tokens[1].tolist() == [-1, -1, -1]
    assert accepted[1] == 0
    assert torch.equal(tokens[::2], torch.ops.rdk.verify(*batch.arguments())[0][::2])
    zero = {"target_temperature": torch.zeros(3)}
    both = (torch.ops.rdk.verify(*each.replace(**zero).arguments())[0] for each in (limits, batch))
    assert torch.equal(*both)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("name", "value"), [("top_k", 7), ("top_p", 0.5), ("min_p", 0.1)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_anywhere_in_a_large_row_leaves_it_without_a_distribution(
    bad: float, name: str, value: float
) -> None:
    """Whether or not a sample of the row has it; and one column that is not bad is enough."""
    size, rows = 9000, 30
    batch = generators.batch(generators.affinity("identity", size), [0] * rows, scale=2.0)
    columns = torch.arange(rows) * 299 // 32 * 32
    batch.target_logits[20:] = -math.inf
    batch.target_logits[20:].scatter_(1, columns[20:, None], 1.5)
    batch.target_logits[:10].scatter_(1, columns[:10, None], bad)
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
    stats = torch.tensor([[1.0, 1.0, threshold]]).expand(20, 3)
    given = batch.replace(draft_stats=stats.contiguous())
    assert not torch.ops.rdk.verify(*given.arguments())[1].any()
