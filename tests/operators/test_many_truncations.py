"""Truncated verification of very many sequences against masking first in float64.

Here `verify` itself judges the masked logits, without limits. What is left out has probability 0
either way, so where the same tokens are kept, every bit has to be the same.
"""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity
from tests import generators
from tests.generators import Batch

from .masked_first import Masked, masked_first

SEQUENCES = 500  # of a call
TOP_P = (1.0, 0.5, 0.9, 0.99, 1e-6, 1 - 1e-7)
MIN_P = (0.0, 1.0, 0.1, 0.01, 1e-20)
# Shares of all sequences: float64 shows a membership within 1e-6 of its boundary; and then tokens
# are others.
NEAR, OTHERS = 0.005, 0.0002


class Counts(NamedTuple):
    sequences: int
    near: int
    others: int


def one_of(values: tuple[float, ...], random: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), (SEQUENCES,), generator=random)]


def drafted(size: int, seed: int) -> Batch:
    """Drafts, themselves truncated in every second batch, and a target around their q."""
    choice, random = Random(seed), generators.generator(seed)
    dtype = choice.choice(generators.DTYPES)
    affinity = generators.affinity(choice.choice(("identity", "virtual", "mixed-2")), size)
    offsets = torch.tensor([0, *torch.randint(0, 4, (SEQUENCES,), generator=random)]).cumsum(0)
    count = int(offsets[-1])
    logits = generators.logits(
        count, affinity.draft_size, seed, dtype=dtype, scale=choice.choice((0.0, 1.0, 3.0))
    )
    keys = torch.randint(-(2**63), 2**63 - 1, (SEQUENCES,), generator=random)
    sequence = torch.repeat_interleave(torch.arange(SEQUENCES), offsets.diff())
    places = torch.arange(count) - offsets[sequence]
    limits = (torch.full((count,), 9, dtype=torch.int32), torch.full((count,), 0.8), None)
    given = (None, None, *(limits if seed % 2 else (None, None, None)))
    ones = torch.ones(count)
    tokens, stats = torch.ops.rdk.draft(
        logits, ones, keys[sequence], places, *affinity.by_draft, *given
    )
    q = torch.ops.rdk.redistribute(logits, ones, *affinity.by_target, affinity.row_top, *given)
    target = choice.choice((0.0, 1.0, 3.0)) * torch.randn(count + SEQUENCES, size, generator=random)
    target[torch.arange(count) + sequence] += 0.7 * q.nan_to_num(0).clamp(min=0.1 / size).log()
    if choice.random() < 0.4:  # ties by the hundred, and flat rows
        target = (target * choice.choice((0.0, 0.5, 2.0))).round()
    forbidden = torch.rand(target.shape, generator=random) < choice.choice((0.0, 0.3, 0.95))
    target = target.masked_fill(forbidden, -math.inf).to(dtype)
    return Batch(
        target, logits, stats, None, tokens, offsets.int(),
        one_of((1.0, 0.7, 1.3, 0.0), random), torch.ones(SEQUENCES), keys,
        torch.zeros(SEQUENCES, dtype=torch.int64), affinity, 3, method=choice.randrange(2),
    )  # fmt: skip


def with_limits(batch: Batch, seed: int) -> Batch:
    """Some of the limits, which differ between sequences."""
    choice, random = Random(-seed - 1), generators.generator(-seed - 1)
    rows, size = batch.target_logits.shape
    words = torch.randint(
        -(2**31), 2**31 - 1, (rows, -(-size // 32)), dtype=torch.int32, generator=random
    )
    few = torch.rand(rows, generator=random) < 0.1
    words[few] = torch.where(torch.arange(words.shape[1]) == words.shape[1] // 2, 5, 0).int()
    given = {
        "top_k": one_of((0, 1, 2, 7, size // 2, size, size + 3), random).int(),
        "top_p": one_of(TOP_P, random),
        "min_p": one_of(MIN_P, random),
        "allowed": words,
    }
    return batch.replace(**{name: each for name, each in given.items() if choice.random() < 0.6})


def compared(seed: int) -> Counts:
    """One call with limits, and one on logits that were masked before."""
    size = Random(seed).choice((1, 2, 31, 33, 33, 100, 100, 100, 100, 300, 300, 1025))
    plain = drafted(size, seed)
    batch = with_limits(plain, seed)
    rows = batch.target_logits.shape[0]
    sequence = torch.repeat_interleave(torch.arange(SEQUENCES), batch.draft_offsets.diff() + 1)

    def of_rows(given: Tensor | None, off: float) -> Tensor:
        return torch.full((rows,), off) if given is None else given[sequence]

    masked = masked_first(
        batch.target_logits, batch.target_temperature[sequence], of_rows(batch.top_k, 0),
        of_rows(batch.top_p, 1.0), of_rows(batch.min_p, 0.0), batch.allowed,
    )  # fmt: skip
    expected = torch.ops.rdk.verify(*plain.replace(target_logits=masked.logits).arguments())
    actual = torch.ops.rdk.verify(*batch.arguments())
    other = (actual[0] != expected[0]).any(1) | (actual[1] != expected[1])
    near = torch.zeros(SEQUENCES, dtype=torch.bool).index_put((sequence[masked.near],),
                                                             torch.tensor(True))  # fmt: skip
    assert not (other & ~near).any(), f"seed {seed}: {actual[0][other]} {expected[0][other]}"
    return Counts(SEQUENCES, int(near.sum()), int(other.sum()))


def counted(seeds: range) -> Counts:
    return Counts(*map(sum, zip(*map(compared, seeds), strict=True)))


def assert_tokens_are_those_of_masking_first(seeds: range) -> None:
    counts = counted(seeds)
    print(counts)
    assert counts.near <= NEAR * counts.sequences, counts
    assert counts.others <= OTHERS * counts.sequences, counts


def test_tokens_of_ten_thousand_sequences_are_those_of_masking_first_to_the_bit() -> None:
    assert_tokens_are_those_of_masking_first(range(20))


@pytest.mark.ci
def test_tokens_of_a_hundred_thousand_sequences_are_those_of_masking_first_to_the_bit() -> None:
    assert_tokens_are_those_of_masking_first(range(1000, 1200))


def test_control_another_top_p_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one part in a thousand."""

    right = masked_first

    def wrong(logits: Tensor, t: Tensor, top_k: Tensor, top_p: Tensor, *others: Any) -> Masked:
        return right(logits, t, top_k, top_p * torch.where(top_p < 1, 0.999, 1.0), *others)

    monkeypatch.setitem(globals(), "masked_first", wrong)
    with pytest.raises(AssertionError, match="seed"):
        counted(range(20))


@lru_cache
def identity(size: int) -> Affinity:
    return generators.affinity("identity", size)


def shaped(kind: str, size: int, seed: int) -> Tensor:
    """Rows with what a sample of them does not show."""
    random = generators.generator(seed)
    row = torch.randn(ROWS, size, generator=random)
    one_in_a_thousand = torch.rand(ROWS, size, generator=random) < 0.001
    if kind in ("equal", "spiked", "nearly flat"):
        row *= 0.0 if kind == "equal" else 1e-3
    if kind == "spiked":
        row += 11 * one_in_a_thousand
    if kind == "peaked":
        row = 4 * row + 8 * one_in_a_thousand
    if kind == "ties":
        row = (2 * row).round()
    if kind == "an outlier":
        row[:, size // 3] = 1e30
    if kind == "one as heavy as the others":
        row[:, 0] = math.log(2 * size)
    if kind == "mostly forbidden":
        row[torch.rand(ROWS, size, generator=random) < 0.97] = -math.inf
    if kind == "pushed down":
        row[torch.rand(ROWS, size, generator=random) < 0.5] = -2e38
    return row


SHAPES = ("normal", "equal", "nearly flat", "spiked", "peaked", "ties", "an outlier",
          "one as heavy as the others", "mostly forbidden", "pushed down")  # fmt: skip
ROWS = 16


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", SHAPES)
def test_large_rows_keep_what_masking_first_keeps(kind: str, threads: int) -> None:
    """Of the whole row, although a sample says where to look."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed, (size, dtype) in enumerate(((5000, torch.bfloat16), (40_000, torch.float32))):
            logits = shaped(kind, size, seed).to(dtype)
            random = generators.generator(seed)

            def one(*values: float, random: torch.Generator = random) -> Tensor:
                return torch.tensor(values)[torch.randint(len(values), (ROWS,), generator=random)]

            limits = {
                "top_k": one(0, 0, 0, 1, 50, size // 3, size // 2, size - 1).int(),
                "top_p": one(1, 0.3, 0.9, 0.9, 0.99, 0.999),
                "min_p": one(0, 0, 0.02),
            }
            temperature = one(1.0, 0.7)
            masked = masked_first(logits, temperature, **limits, words=None)
            batch = Batch(
                logits, logits[:0], None, None, torch.zeros(0, dtype=torch.int64),
                torch.zeros(ROWS + 1, dtype=torch.int32), temperature, temperature,
                torch.arange(ROWS), torch.arange(ROWS), identity(size), 0, logprobs=1,
            )  # fmt: skip
            actual = torch.ops.rdk.verify(*batch.replace(**limits).arguments())
            exact = torch.ops.rdk.verify(*batch.replace(target_logits=masked.logits).arguments())
            for mine, right in zip(actual, exact, strict=True):
                assert torch.equal(mine[~masked.near], right[~masked.near])
            assert masked.near.float().mean() < 0.5
    finally:
        torch.set_num_threads(before)
