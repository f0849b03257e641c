"""A row's result has the same bits whatever is computed next to it (DESIGN, "To the bit")."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.generators import Batch

pytestmark = pytest.mark.usefixtures("device")

SIZE, LENGTHS = 2600, [3, 0, 1, 5, 2, 4, 1]


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal with NaN equal to NaN, naming the first difference."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    same = actual == expected
    if actual.is_floating_point():
        same |= actual.isnan() & expected.isnan()
    assert same.all(), f"first difference at {(~same).nonzero()[0].tolist()}"


def made(kind: str, dtype: torch.dtype) -> Batch:
    """Two chunks of drafter columns and one of dynamic ones, three of the target's."""
    return generators.batch(
        generators.affinity(kind, SIZE),
        LENGTHS,
        dtype=dtype,
        draft_temperature=0.9,
        target_temperature=1.1,
        dynamic=7,
        forbidden=0.05,
    )


@pytest.fixture(params=[("virtual", torch.float32), ("mixed-2", torch.bfloat16)], ids=str)
def batch(request: pytest.FixtureRequest) -> Batch:
    return made(*request.param)


# ------------------------------------------------------------------------ draft and redistribute


def drafted(
    batch: Batch, rows: Tensor, laid_out: Callable[[Tensor], Tensor] = lambda rows: rows
) -> tuple[Tensor, ...]:
    """Tokens, stats and probs of some rows of a batch, one call each."""
    columns = batch.draft_logits, batch.dynamic_tokens, batch.dynamic_logits
    logits, *dynamic = (laid_out(part[rows]) for part in columns if part is not None)
    temperature = torch.full(logits.shape[:-1], 0.9)
    affinity = batch.affinity
    tokens, stats = torch.ops.rdk.draft(
        logits, temperature, rows * 31, rows + 2**33, *affinity.by_draft, *dynamic
    )
    by_target = (*affinity.by_target, affinity.row_top)
    return tokens, stats, torch.ops.rdk.redistribute(logits, temperature, *by_target, *dynamic)


def with_zeros(affinity: Affinity) -> Affinity:
    """The same, but for a bias of zeros that operators are given."""
    other = copy.copy(affinity)
    object.__setattr__(other, "is_biased", True)
    return other


def assert_all_same_bits(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [None, 40])
def test_no_bias_and_a_bias_of_zeros(
    dtype: torch.dtype, temperature: float, top_k: int | None
) -> None:
    affinity = generators.affinity("first-order", SIZE)
    batch = generators.batch(affinity, LENGTHS, dtype=dtype, dynamic=7)
    assert not batch.affinity.is_biased
    rows = batch.draft_logits.shape[0]
    limit = None if top_k is None else torch.full((rows,), top_k, dtype=torch.int32)
    given = batch.draft_logits, torch.full((rows,), temperature)
    keys = torch.arange(rows), torch.arange(rows)
    dynamic = batch.dynamic_tokens, batch.dynamic_logits, limit

    def results(affinity: Affinity) -> tuple[Tensor, ...]:
        columns = (*affinity.by_target, affinity.row_top)
        return (
            *torch.ops.rdk.draft(*given, *keys, *affinity.by_draft, *dynamic),
            torch.ops.rdk.redistribute(*given, *columns, *dynamic),
            *verified(batch.replace(affinity=affinity)),
        )

    assert_all_same_bits(results(batch.affinity), results(with_zeros(batch.affinity)))


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
def test_rows_at_every_alignment(dtype: torch.dtype) -> None:
    """Slices of wider rows start at any element, so that 128-bit loads are or are not aligned."""
    batch = made("mixed-1", dtype)
    rows = torch.arange(16)
    expected = drafted(batch, rows), verified(batch)
    for before, after in [(n, 8 - n) for n in range(9)] + [(n, 13) for n in (0, 1, 4, 7)]:

        def sliced(part: Tensor, before: int = before, after: int = after) -> Tensor:
            if part.is_floating_point():
                return generators.in_wider_rows(part, before, after)
            return torch.nn.functional.pad(part, (before, after), value=99)[
                ..., before : before + part.shape[-1]
            ]

        assert_all_same_bits(drafted(batch, rows, sliced), expected[0])
        names = ("target_logits", "draft_logits", "dynamic_tokens", "dynamic_logits")
        wide = batch.replace(**{name: sliced(getattr(batch, name)) for name in names})
        assert_same_result(wide, expected[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 7, 1027])
def test_rows_that_end_in_the_middle_of_a_word_and_the_same_in_float32(
    size: int, dtype: torch.dtype
) -> None:
    batch = generators.batch(
        generators.affinity("identity", size),
        LENGTHS,
        dtype=dtype,
        draft_temperature=0.9,
        target_temperature=1.1,
    ).replace(logprobs=1)
    floats = batch.replace(
        target_logits=batch.target_logits.float(), draft_logits=batch.draft_logits.float()
    )
    rows = torch.arange(16)
    assert_all_same_bits(drafted(batch, rows), drafted(floats, rows))
    verify = torch.ops.rdk.verify
    assert_all_same_bits(verify(*batch.arguments()), verify(*floats.arguments()))


# ------------------------------------------------------------------------------------------ verify


def verified(batch: Batch) -> tuple[Tensor, Tensor]:
    tokens, num_accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    return tokens, num_accepted


def assert_same_result(batch: Batch, expected: tuple[Tensor, Tensor]) -> None:
    assert_all_same_bits(verified(batch), expected)


@pytest.mark.fast_in_the_emulator
def test_stats_passed_or_recomputed(batch: Batch) -> None:
    assert_same_result(batch.with_stats(), verified(batch))


def test_another_seed_or_position_is_another_draw(batch: Batch) -> None:
    """The control: without it, a test of equality would pass on constants."""
    expected = verified(batch)
    for name in ("step_keys", "positions"):
        tokens, _ = verified(batch.replace(**{name: getattr(batch, name) + 1}))
        assert not torch.equal(tokens, expected[0])
