"""Operators with a mask, top-k, top-p, min-p and log-probabilities."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any

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

SIZES = (1, 2, 31, 33, 100, 1023, 1025, 2500)
TOP_P = (1.0, 0.5, 0.9, 1e-6, 1 - 1e-7)
MIN_P = (0.0, 1.0, 0.1, 0.01, 1e-20)
# Rounding may keep other tokens than float64 in fewer sequences than this.
OTHERS = 0.002


METHODS = [0, 1]  # by token, by block


def chosen(random: Random, values: tuple[float, ...], count: int) -> Tensor:
    return torch.tensor([random.choice(values) for _ in range(count)], dtype=torch.float32)


def some_words(rows: int, size: int, random: Random) -> Tensor:
    """Masks that allow half of the tokens, all of them, one or none."""
    words = torch.randint(
        -(2**31), 2**31 - 1, (rows, -(-size // 32)), dtype=torch.int32,
        generator=generators.generator(random.getrandbits(30)),
    )  # fmt: skip
    for row in words:
        row[random.randrange(row.numel()) :] = random.choice([0, -1, 1, 5])
    return words


def random_batch(seed: int) -> Batch:
    random = Random(seed)
    size, lengths = random.choice(SIZES), [random.randrange(4) for _ in range(random.randint(1, 4))]
    batch = generators.batch(
        generators.affinity(random.choice(("identity", "virtual", "mixed-2")), size),
        lengths,
        seed,
        dtype=random.choice(generators.DTYPES),
        target_temperature=random.choice((1.0, 0.7, 1.3, 0.0)),
        dynamic=random.choice((0, 3)),
        scale=random.choice((0.0, 1.0, 2.0, 5.0)),
        forbidden=random.choice((0.0, 0.3, 0.95)),
    )
    target = batch.target_logits
    if random.random() < 0.4:  # ties by the hundred, and flat rows
        target = (target.float() * random.choice((0.0, 0.5, 2.0))).round().to(target.dtype)
        target = target.masked_fill(batch.target_logits == -math.inf, -math.inf)
    count = len(lengths)
    top_k = [random.choice((0, 1, 2, 7, size // 2, size, size + 3)) for _ in range(count)]
    given = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, TOP_P, count),
        "min_p": chosen(random, MIN_P, count),
        "allowed": some_words(target.shape[0], size, random),
    }
    kept = {name: tensor for name, tensor in given.items() if random.random() < 0.6}
    return batch.replace(target_logits=target, logprobs=random.choice((0, 1, 2)), **kept)


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


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_of_masking_first_in_float64(method: int) -> None:
    """And those of the reference, whose log-probabilities are within 1e-5."""
    assert_verifies_as_if_masked_first(range(120), method)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_tokens_of_a_thousand_cases_are_those_of_masking_first_in_float64(method: int) -> None:
    assert_verifies_as_if_masked_first(range(1000, 1500), method)


def test_every_backend_gives_the_tokens_of_masking_first(device: str) -> None:
    assert_verifies_as_if_masked_first(range(30 if device in MACHINES else 60), 0)


@pytest.mark.slow
def test_every_backend_gives_the_tokens_of_masking_first_in_many_cases(device: str) -> None:
    """Fewer of them in the emulator, which is slow."""
    assert_verifies_as_if_masked_first(range(6000, 6500 if device in MACHINES else 7000), 0)


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


def assert_each_sequence_has_the_bits_that_it_has_alone(method: int) -> None:
    for seed in range(40):
        batch = random_batch(seed).replace(logprobs=1, method=method)
        together = torch.ops.rdk.verify(*batch.arguments())
        bounds = batch.draft_offsets.tolist()
        for b in range(batch.size):
            drafts = slice(bounds[b], bounds[b + 1])
            rows = slice(bounds[b] + b, bounds[b + 1] + b + 1)
            one = slice(b, b + 1)

            def cut(name: str, part: slice, batch: Batch = batch) -> Tensor | None:
                tensor = getattr(batch, name)
                return None if tensor is None else tensor[part]

            per_sequence = ("target_temperature", "draft_temperature", "step_keys", "positions")
            own = batch.replace(
                **{name: cut(name, one) for name in (*per_sequence, "top_k", "top_p", "min_p")},
                **{name: cut(name, rows) for name in ("target_logits", "allowed")},
                **{
                    name: cut(name, drafts)
                    for name in ("draft_logits", "draft_token_ids", "dynamic_tokens",
                                 "dynamic_logits")
                },
                draft_offsets=torch.tensor([0, bounds[b + 1] - bounds[b]], dtype=torch.int32),
            )  # fmt: skip
            for alone, many in zip(torch.ops.rdk.verify(*own.arguments()), together, strict=True):
                assert torch.equal(alone[0], many[b])


@pytest.mark.parametrize("method", METHODS)
def test_a_sequence_has_the_bits_that_it_has_alone(method: int) -> None:
    assert_each_sequence_has_the_bits_that_it_has_alone(method)


@pytest.mark.usefixtures("device")
def test_a_sequence_has_the_bits_that_it_has_alone_on_every_backend() -> None:
    assert_each_sequence_has_the_bits_that_it_has_alone(0)


def test_ties_at_a_threshold_all_stay(device: str) -> None:
    """A thousand equal logits: top-k of 1 and a tiny top-p keep all of them."""
    size, count = 4000, 20 if device in MACHINES else 2000
    row = torch.full((size,), -1.0)
    row[1500:2500] = 3.0
    copied = rdk_cuda.Draft.without_distribution(
        torch.full((count, 0), 0), seeds=torch.arange(count)
    )
    affinity = generators.affinity("identity", size)
    target = row.expand(count, 1, size)
    for limit in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        verified = rdk_cuda.verify(target, copied, affinity, logprobs="processed", **limit)
        assert ((verified.tokens >= 1500) & (verified.tokens < 2500)).all()
        assert verified.tokens.unique().numel() > count // 4
        torch.testing.assert_close(verified.logprobs, torch.full((count, 1), -math.log(1000)))


def test_values_that_differ_in_their_last_bit_are_told_apart(device: str) -> None:
    """Each of them is 1/4000 of the row, so that one too many shows in the log-probability."""
    size = 4000
    order = torch.randperm(size, generator=generators.generator(1)).int()
    row = (order + torch.tensor(1.6).view(torch.int32)).view(torch.float32)
    limits = [{"top_k": k} for k in (1, 2, 7, 1000, 3999)]
    limits += [{"top_p": p} for p in (1e-6, 0.25, 0.5, 0.9997, 1 - 1e-7)]
    both = [{"top_k": k, "top_p": 0.5} for k in (2, 3, 999)]
    count = 2 if device in MACHINES else 20
    seeds, tokens = torch.arange(count), torch.empty(count, 0, dtype=torch.int64)
    copied = rdk_cuda.Draft.without_distribution(tokens, seeds=seeds)
    limits += [{"top_k": k} for k in range(3, 13)]  # neighbours may have one quotient
    for limit, temperature in product((*limits, *both), (1.0, 1.5)):
        verified = rdk_cuda.verify(
            row.expand(count, 1, size), copied, generators.affinity("identity", size), temperature,
            logprobs="processed", **limit,
        )  # fmt: skip
        z = row / temperature
        kept = z >= truncation.threshold(z, truncation.Limits(**limit))
        log_p = z.double().masked_fill(~kept, -math.inf).log_softmax(0)[verified.tokens]
        torch.testing.assert_close(verified.logprobs.double(), log_p, rtol=0, atol=0.1 / size)


@pytest.mark.usefixtures("device")
def test_a_quotient_that_overflows_leaves_a_row_without_a_distribution() -> None:
    batch = generators.batch(generators.affinity("identity", 40), [0, 0])
    batch = batch.replace(
        target_temperature=torch.full((2,), 0.5),
        top_k=torch.tensor([3, 3], dtype=torch.int32),
    )
    batch.target_logits[1, 7] = -3e38
    tokens = torch.ops.rdk.verify(*batch.arguments())[0]
    assert (tokens[:, 0] == -1).tolist() == [False, True]


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
        rows = first_rows(batch)[:, None] + torch.arange(batch.max_draft + 1)
        rows = rows.clamp(max=batch.target_logits.shape[0] - 1)
        log_p = batch.target_logits.double().log_softmax(1)[rows, tokens.clamp(min=0)]
        expected = log_p.masked_fill(tokens == -1, -math.inf)
        torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("device")
def test_a_row_with_one_finite_value_gives_it() -> None:
    row = torch.full((1, 1, 3000), -math.inf)
    row[..., 2222] = -70.0
    copied = rdk_cuda.Draft.without_distribution(torch.empty(1, 0, dtype=torch.int64), seeds=1)
    limits = {"top_k": 5, "top_p": 0.3, "min_p": 0.5}
    affinity = generators.affinity("identity", 3000)
    verified = rdk_cuda.verify(row, copied, affinity, 0.5, **limits, logprobs="raw")
    assert verified.tokens.tolist() == [[2222]]
    assert verified.logprobs.tolist() == [[0.0]]


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
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nothing_allowed_has_no_distribution(temperature: float) -> None:
    batch = generators.batch(generators.affinity("identity", 70), [0, 0])
    words = torch.tensor([[0, 0, 0], [0, 8, 0]], dtype=torch.int32)
    batch = batch.replace(
        allowed=words, target_temperature=torch.full((2,), temperature), logprobs=1
    )
    tokens, _, logprobs = torch.ops.rdk.verify(*batch.arguments())
    assert tokens.tolist() == [[-1], [35]]
    assert logprobs.tolist() == [[-math.inf], [0.0]]


@pytest.mark.usefixtures("device")
def test_what_is_not_allowed_is_not_seen() -> None:
    """NaN there does no harm, but the raw log-probability is NaN."""
    batch = generators.batch(generators.affinity("identity", 40), [0])
    batch.target_logits[0, 7] = math.nan
    words = torch.tensor([[~(1 << 7), -1]], dtype=torch.int32)
    tokens, _, processed = torch.ops.rdk.verify(
        *batch.replace(allowed=words, logprobs=1).arguments()
    )
    assert tokens[0, 0] >= 0
    assert processed.isfinite().all()
    assert (
        torch.ops.rdk.verify(*batch.replace(allowed=words, logprobs=2).arguments())[2].isnan().all()
    )
    assert torch.ops.rdk.verify(*batch.arguments())[0].tolist() == [[-1]]


@pytest.mark.usefixtures("device")
def test_a_mask_may_be_a_slice_of_wider_rows() -> None:
    batch = random_batch(5)
    rows, size = batch.target_logits.shape
    words = some_words(rows, size, Random(1))
    expected = torch.ops.rdk.verify(*batch.replace(allowed=words).arguments())[0]
    wide = torch.zeros(rows, words.shape[1] + 3, dtype=torch.int32)
    wide[:, 2:-1] = words
    sliced = batch.replace(allowed=wide[:, 2:-1])
    assert torch.equal(torch.ops.rdk.verify(*sliced.arguments())[0], expected)


REFUSED = [
    ("top_k", torch.zeros(2), "dtype Float"),
    ("top_k", torch.zeros(3, dtype=torch.int32), r"shape \[3\]"),
    ("top_p", torch.ones(2, dtype=torch.float64), "dtype Double"),
    ("min_p", torch.zeros(1, 2), r"shape \[1, 2\]"),
    ("allowed", torch.zeros(4, 2), "dtype Float"),
    ("allowed", torch.zeros(4, 3, dtype=torch.int32), r"shape \[4, 3\]"),
    ("allowed", torch.zeros(3, 2, dtype=torch.int32), "3 rows"),
    ("allowed", torch.zeros(2, 4, dtype=torch.int32).T[:, :2].T.T, "shape|stride"),
    ("draft_stats", torch.ones(2, 4), r"shape \[2, 4\]"),
    ("draft_stats", torch.ones(2, 1), r"shape \[2, 1\]"),
    ("logprobs", 3, "is 3"),
    ("logprobs", -1, "is -1"),
]


@pytest.mark.parametrize(("name", "value", "found"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str, value: object, found: str) -> None:
    batch = generators.batch(generators.affinity("identity", 40), [1, 1])
    with pytest.raises(RuntimeError, match=rf"rdk::verify: {name} .*({found}).*, but needs "):
        torch.ops.rdk.verify(*batch.replace(**{name: value}).arguments())


# ------------------------------------------------------------------------------------------- drafts


def assert_drafts_as_the_reference(seed: int, drafter: Any) -> None:
    """Tokens, thresholds to the bit, q, and what `verify` makes of them."""
    random = Random(seed)
    kind = random.choice(("identity", "virtual", "mixed-2", "mixed-4", "intersection"))
    scale, dtype = random.choice((0.0, 1.0, 3.0)), random.choice(generators.DTYPES)
    batch = generators.batch(
        generators.affinity(kind, random.choice(SIZES[1:])),
        [random.randrange(4) for _ in range(3)],
        seed,
        dtype=dtype,
        draft_temperature=random.choice((1.0, 0.7, 0.0)),
        dynamic=random.choice((0, 3, 7)),
        scale=scale,
        forbidden=random.choice((0.0, 0.3)),
    )
    logits = batch.draft_logits
    if random.random() < 0.4:
        logits = (logits.float() * 2).round().div(2).to(dtype)
        batch = batch.replace(draft_logits=logits)
    rows, affinity = logits.shape[0], batch.affinity
    top_k = [random.choice((0, 1, 2, 7, affinity.draft_size, -1)) for _ in range(rows)]
    limits = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, TOP_P, rows),
        "min_p": chosen(random, MIN_P, rows),
    }
    limits = {name: tensor for name, tensor in limits.items() if random.random() < 0.6}
    scales = torch.full((rows,), float(batch.draft_temperature[0]))
    dynamic = (batch.dynamic_tokens, batch.dynamic_logits)
    draft = (logits, scales, torch.arange(rows) + seed, torch.arange(rows), *affinity.by_draft)
    tokens, stats = drafter.draft(*draft, *dynamic, **limits)
    trace = reference.Trace()
    exact = reference.draft(*draft, *dynamic, **limits, dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, exact[0], trace.margins(rows))
    torch.testing.assert_close(stats.double(), exact[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    if limits:
        assert torch.equal(stats[:, -1].nan_to_num(7), exact[1][:, -1].float().nan_to_num(7))
    spread = (logits, scales, *affinity.by_target, affinity.row_top, *dynamic)
    q = drafter.redistribute(*spread, **limits)
    exact_q = reference.redistribute(*spread, **limits, dtype=torch.float64)
    torch.testing.assert_close(q.double(), exact_q, rtol=1e-4, atol=1e-7, equal_nan=True)
    drawn = q.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    assert ((tokens == -1) | (drawn > 0)).all()

    batch = batch.replace(draft_token_ids=tokens, draft_stats=stats)
    trace = reference.Trace()
    expected = reference.verify(*batch.arguments(), dtype=torch.float64, trace=trace)
    actual = torch.ops.rdk.verify(*batch.arguments())
    assert_same_draws(actual[0], expected[0], trace.margins(batch.size))


def test_truncated_drafts_are_those_of_the_reference(device: str, cpu: Any) -> None:
    for seed in range(16 if device in MACHINES else 150):
        assert_drafts_as_the_reference(seed, cpu)


@pytest.mark.slow
def test_many_truncated_drafts_are_those_of_the_reference(device: str, cpu: Any) -> None:
    """A tenth of them in the emulator, which is slow."""
    for seed in range(1000, 1300 if device in MACHINES else 4000):
        assert_drafts_as_the_reference(seed, cpu)


def test_a_row_of_drafts_that_is_not_truncated_has_the_same_bits() -> None:
    batch = generators.batch(generators.affinity("mixed-2", 2500), [3] * 5, dynamic=9)
    rows = batch.draft_logits.shape[0]
    draft = (
        batch.draft_logits, torch.ones(rows), torch.arange(rows), torch.arange(rows),
        *batch.affinity.by_draft, batch.dynamic_tokens, batch.dynamic_logits,
    )  # fmt: skip
    plain = torch.ops.rdk.draft(*draft)
    off = torch.ops.rdk.draft(*draft, torch.zeros(rows, dtype=torch.int32))
    assert torch.equal(plain[0], off[0])
    assert torch.equal(plain[1], off[1][:, :-1])
    assert (off[1][:, -1] == -math.inf).all()
    verified = [
        torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[0]
        for _, stats in (plain, off)
    ]
    assert torch.equal(*verified)


def thresholds(z: Tensor, **limits: Tensor) -> Tensor:
    """Those of drafts whose logits are these rows, at temperature 1."""
    affinity, rows = generators.affinity("identity", z.shape[1]), torch.arange(z.shape[0])
    ones = torch.ones(z.shape[0])
    stats: Tensor = torch.ops.rdk.draft(z, ones, rows, rows, *affinity.by_draft, **limits)[1]
    return stats[:, -1]


def test_masses_are_those_of_the_contract_to_the_last_unit() -> None:
    """The next float32 of top_p decides between two values, if the second one's mass is exact."""
    random, size = Random(7), 60
    rows, given = [], []
    for _ in range(100):
        first, x = random.randrange(1, 4), torch.tensor(random.uniform(-6.0, -0.1))
        row = torch.cat([torch.zeros(first), x.expand(size - first)])
        whole = first * 2.0**40
        share = whole / (whole + (size - first) * int(truncation.masses(x)))
        for _ in range(2):
            rows.append(row)
        below = torch.tensor(share).nextafter(torch.tensor(0.0))
        given += [below, torch.tensor(share)]
    z, top_p = torch.stack(rows), torch.stack(given)
    near = [
        truncation.threshold(row, truncation.Limits(top_p=float(p)))
        for row, p in zip(z, top_p, strict=True)
    ]
    assert torch.equal(thresholds(z, top_p=top_p), torch.tensor(near))


def test_the_lowest_numbers_are_told_apart() -> None:
    lowest = torch.finfo(torch.float32).min
    values = [0.0, lowest * 0.999, lowest * 0.9999, lowest, -math.inf, -math.inf]
    z = torch.tensor(values).expand(5, -1).contiguous()
    found = thresholds(z, top_k=torch.arange(1, 6, dtype=torch.int32))
    assert found.tolist() == [*z[0, :4].tolist(), -math.inf]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("threshold", [math.nan, math.inf])
def test_a_draft_with_an_unusable_threshold_is_rejected(threshold: float) -> None:
    batch = generators.batch(generators.affinity("identity", 100), [1] * 20)
    rows = batch.draft_logits.shape[0]
    stats = torch.cat([torch.ones(rows, 2), torch.full((rows, 1), threshold)], 1)
    assert not torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[1].any()


@pytest.mark.parametrize("operator", ["draft", "redistribute"])
@pytest.mark.parametrize("given", ["top_k", "top_p", "min_p"])
def test_the_kernels_of_drafts_refuse_by_name_what_they_lack(
    operator: str, given: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("emulated").set_machine(*MACHINES["small-batches"])
    affinity, ones = generators.affinity("identity", 40), torch.ones(2)
    value = ones.int() if given == "top_k" else ones
    arguments: dict[str, tuple[object, ...]] = {
        "draft": (ones, torch.arange(2), torch.arange(2), *affinity.by_draft),
        "redistribute": (ones, *affinity.by_target, affinity.row_top),
    }
    with pytest.raises(RuntimeError, match=f"rdk::{operator}: {given} is given, .*CUDA kernels"):
        getattr(torch.ops.rdk, operator)(torch.zeros(2, 40), *arguments[operator], **{given: value})


# -------------------------------------------------------------------------------------------- trees


def assert_walks_trees_as_the_reference(seed: int) -> int:
    random = Random(seed)
    size, sizes = random.choice(SIZES), [random.randrange(15) for _ in range(random.randint(1, 4))]
    trees = generators.trees(
        sizes, size, seed, dtype=random.choice(generators.DTYPES),
        temperature=random.choice((1.0, 0.7, 0.0)), forbidden=random.choice((0.0, 0.3)),
    )  # fmt: skip
    count = len(sizes)
    top_k = [random.choice((0, 1, 2, 7, size, -1)) for _ in range(count)]
    given = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, (*TOP_P, math.nan), count),
        "min_p": chosen(random, MIN_P, count),
        "allowed": some_words(trees.target_logits.shape[0], size, random),
    }
    trees = trees.replace(**{n: tensor for n, tensor in given.items() if random.random() < 0.6})
    trace = reference.Trace()
    expected = reference.verify_tree(*trees.arguments(), dtype=torch.float64, trace=trace)
    actual = torch.ops.rdk.verify_tree(*trees.arguments())
    for one, other in zip(actual, expected, strict=True):
        assert_same_draws(one, other, trace.margins(count))
    return int(actual[1].sum())


def test_truncated_trees_are_walked_as_by_the_reference() -> None:
    assert sum(map(assert_walks_trees_as_the_reference, range(300))) > 300


@pytest.mark.parametrize("given", ["top_k", "top_p", "min_p", "allowed"])
def test_the_kernel_of_trees_refuses_by_name_what_it_lacks(
    given: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("emulated").set_machine(*MACHINES["small-batches"])
    values = {
        "top_k": torch.ones(2, dtype=torch.int32), "top_p": torch.ones(2), "min_p": torch.ones(2),
        "allowed": torch.zeros(4, 2, dtype=torch.int32),
    }  # fmt: skip
    trees = generators.trees([1, 1], 40).replace(**{given: values[given]})
    with pytest.raises(RuntimeError, match=f"rdk::verify_tree: {given} is given, .*CUDA kernels"):
        torch.ops.rdk.verify_tree(*trees.arguments())


# --------------------------------------------------------------------------------- the Python layer


def test_the_python_layer_spreads_one_number_over_the_batch() -> None:
    affinity = generators.affinity("virtual", 300)
    drafts = rdk_cuda.draft(
        generators.logits(4, affinity.draft_size).unsqueeze(1), affinity, seeds=3
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


def test_the_python_layer_refuses_what_does_not_fit() -> None:
    affinity = generators.affinity("identity", 40)
    copied = rdk_cuda.Draft.without_distribution(torch.tensor([[1]]), seeds=1)
    target = torch.zeros(1, 2, 40)
    with pytest.raises(ValueError, match=r"allowed has shape \[2, 2\]; needs \[1, 2, ceil"):
        rdk_cuda.verify(target, copied, affinity, allowed=torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="logprobs is 'all'; needs"):
        rdk_cuda.verify(target, copied, affinity, logprobs="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"top_p has shape \[2\]; needs \[1\]"):
        rdk_cuda.verify(target, copied, affinity, top_p=[0.5, 0.5])
