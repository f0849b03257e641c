"""Bad values have the results that DESIGN section 4, "Bad input", says, and harm no other row."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.generators import Batch

pytestmark = pytest.mark.usefixtures("device")

SIZE = 2500
NAN, INF = math.nan, math.inf
LEAST, LARGEST = -(2**31), 2**31 - 1
ROWS = 5
BAD = 2  # The row that has no distribution.
OTHERS = [row for row in range(ROWS) if row != BAD]


@cache
def affinity() -> Affinity:
    """1250 drafter tokens, two chunks; every seventh from the fourth on is masked."""
    made = generators.affinity("mixed-2", SIZE)
    assert made.bias[3] == -INF
    return made


ALL = slice(None)
NOT_MASKED = torch.arange(1250) % 7 != 3
# What takes a row's distribution away: a static column, a dynamic one, the temperature.
TEMPERATURES: dict[str, tuple[Any, Any, float | None]] = {
    f"T = {temperature}": (None, None, temperature) for temperature in (NAN, -0.5, INF, -INF)
}
LOGITS: dict[str, tuple[Any, Any, float | None]] = {
    "NaN": ((1200, NAN), None, None),
    "NaN in a masked column": ((3, NAN), None, None),
    "+inf": ((0, INF), None, None),
    "+inf in a masked column": ((3, INF), None, None),
    "NaN in a dynamic column": (None, (0, NAN), None),
    "+inf in a dynamic column": (None, (1, INF), None),
    "no finite logit": ((ALL, -INF), (ALL, -INF), None),
    "no finite logit but masked ones": ((NOT_MASKED, -INF), (ALL, -INF), None),
}
OVERFLOWS: dict[str, tuple[Any, Any, float | None]] = {
    "overflow by the temperature": ((7, 1e30), None, 1e-30),
    "overflow to -inf by the temperature": ((7, -1e30), None, 1e-30),
    "overflow in a masked column": ((3, 1e30), None, 1e-30),
    "overflow in a dynamic column": (None, (0, 1e30), 1e-30),
}
SPOILED = {**TEMPERATURES, **LOGITS, **OVERFLOWS}


def spoil(case: str, logits: Tensor, temperature: Tensor, dynamic_logits: Tensor) -> None:
    static, dynamic, scale = SPOILED[case]
    for row, change in ((logits[BAD], static), (dynamic_logits[BAD], dynamic)):
        if change is not None:
            row[change[0]] = change[1]
    if scale is not None:
        temperature[BAD] = scale


def draft_rows(temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, temperatures, dynamic tokens, all of them used, and their logits."""
    return (
        generators.logits(ROWS, affinity().draft_size),
        torch.full((ROWS,), temperature),
        torch.randint(0, SIZE, (ROWS, 4), generator=generators.generator(1)).int(),
        generators.logits(ROWS, 4, seed=2),
    )


def drafted(logits: Tensor, temperature: Tensor, *dynamic: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, stats and probs."""
    integers, by_target = torch.arange(ROWS), (*affinity().by_target, affinity().row_top)
    tokens, stats = torch.ops.rdk.draft(
        logits, temperature, integers, integers, *affinity().by_draft, *dynamic
    )
    return tokens, stats, torch.ops.rdk.redistribute(logits, temperature, *by_target, *dynamic)


@pytest.mark.parametrize(
    ("case", "temperature"),
    [(case, 1.0) for case in SPOILED] + [(case, 0.0) for case in (*TEMPERATURES, *LOGITS)],
)
def test_a_draft_row_without_distribution(case: str, temperature: float) -> None:
    logits, scale, tokens, values = draft_rows(temperature)
    before = drafted(logits, scale, tokens, values)
    spoil(case, logits, scale, values)
    after = drafted(logits, scale, tokens, values)
    assert after[0][BAD] == -1
    assert after[1][BAD].isnan().all()
    assert after[2][BAD].isnan().all()
    for actual, expected in zip(after, before, strict=True):
        assert torch.equal(actual[OTHERS], expected[OTHERS])
    integers = torch.arange(ROWS)
    expected_tokens, expected_stats = reference.draft(
        logits, scale, integers, integers, *affinity().by_draft, tokens, values
    )
    assert torch.equal(after[0], expected_tokens)
    torch.testing.assert_close(after[1], expected_stats, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize(
    ("bad", "temperature"), [(NAN, 1.0), (-NAN, 1.0), (INF, 1.0), (-6e4, 1e-35)]
)
@pytest.mark.parametrize("others", [0.0, -INF])
def test_one_bad_logit_takes_a_row_its_distribution(
    dtype: torch.dtype, bad: float, temperature: float, others: float
) -> None:
    """Wherever it is among its neighbours in memory, which kernels compare in pairs.

    Rows of whole chunks without dynamic columns, which kernels call plain. The last overflows.
    """
    identity = Affinity.intersection(Vocabulary(range(1024), target_size=1024))
    rows = torch.arange(16)
    logits = torch.full((17, 1024), others, dtype=dtype)
    logits[rows, rows] = bad
    logits[:, 99] = 1.0
    scale, integers = torch.full((17,), temperature), torch.arange(17)
    tokens, stats = torch.ops.rdk.draft(logits, scale, integers, integers, *identity.by_draft)
    probs = torch.ops.rdk.redistribute(logits, scale, *identity.by_target, identity.row_top)
    assert (tokens[:16] == -1).all()
    assert stats[:16].isnan().all()
    assert probs[:16].isnan().all()
    assert tokens[16] >= 0
    assert stats[16, 0] == 1 / scale[16]


@pytest.mark.fast_in_the_emulator(token=(-1,))
@pytest.mark.parametrize("token", [-1, LEAST, SIZE, LARGEST])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_an_unused_dynamic_column_is_not_read(token: int, temperature: float) -> None:
    logits, scale, tokens, values = draft_rows(temperature)
    tokens[:, 3] = -1
    expected = drafted(logits, scale, tokens, values)
    tokens[:, 3] = token
    for bad in (NAN, INF):
        values[:, 3] = bad
        assert all(map(torch.equal, drafted(logits, scale, tokens, values), expected))


# ------------------------------------------------------------------------------------------ verify


def batch(target_temperature: float = 1.0, draft_temperature: float = 1.0) -> Batch:
    """Three sequences of two drafts, then a bonus row each; rows 0 to 5 of the draft are used."""
    made = generators.batch(
        affinity(),
        [2, 2, 2],
        target_temperature=target_temperature,
        draft_temperature=draft_temperature,
        dynamic=4,
    )
    made.dynamic_tokens = torch.randint(0, SIZE, (6, 4), generator=generators.generator(1)).int()
    return made


def verified(batch: Batch) -> tuple[list[list[int]], list[int]]:
    """As the reference decides, too."""
    tokens, num_accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    expected = reference.verify(*batch.arguments(), dtype=torch.float64)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(num_accepted, expected[1])
    return tokens.tolist(), num_accepted.tolist()


def always_accepted(batch: Batch) -> Batch:
    """Target rows that put nearly everything on the drafted tokens."""
    target = batch.target_logits.clone()
    for b, j in itertools.product(range(3), range(2)):
        target[3 * b + j, batch.draft_token_ids[2 * b + j]] = 60.0
    return batch.replace(target_logits=target)


def assert_rejected(given: Batch, j: int) -> None:
    """Draft j of sequence 1 is: q counts as 0, so residual try 0 draws the output from p."""
    tokens, num_accepted = verified(given)
    alone = given.replace(
        draft_token_ids=torch.full((6,), SIZE),  # out of range: q = 0
        draft_rows=None,
        positions=given.positions + j,
        target_logits=given.target_logits.roll(-j, 0),
    )
    from_p = int(reference.verify(*alone.arguments(), dtype=torch.float64)[0][1, 0])
    assert num_accepted == [2, j, 2]
    assert tokens[1] == [*given.draft_token_ids[2 : 2 + j].tolist(), from_p, *[-1] * (2 - j)]


@pytest.mark.parametrize("target_temperature", [1.0, 0.0])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("case", [*LOGITS, *OVERFLOWS])
def test_a_draft_row_without_distribution_is_rejected_and_drawn_from_the_target(
    case: str, stats: bool, target_temperature: float
) -> None:
    """In every case q is 0 everywhere: nothing is accepted however likely the target thinks it."""
    given = always_accepted(batch(target_temperature))
    given.dynamic_logits = generators.logits(6, 4, seed=2)
    temperature = torch.ones(6)
    spoil(case, given.draft_logits, temperature, given.dynamic_logits)
    given.draft_temperature[1] = temperature[BAD]  # Draft row 2 is the first of sequence 1.
    assert_rejected(given.with_stats(temperature) if stats else given, 0)


NARROW, WIDE = [SIZE, -2, LEAST, LARGEST], [2**62, -(2**62), 2**32 + 5, -(2**32) + 5]


@pytest.mark.fast_in_the_emulator(token=(2500,))
@pytest.mark.parametrize("draft_temperature", [1.0, 0.0])
@pytest.mark.parametrize(
    ("token", "dtype"),
    [(token, torch.int32) for token in NARROW] + [(token, torch.int64) for token in NARROW + WIDE],
)
def test_a_drafted_id_out_of_range_is_rejected(
    token: int, draft_temperature: float, dtype: torch.dtype
) -> None:
    """And a wide one is not cut to 32 bits."""
    given = always_accepted(batch(draft_temperature=draft_temperature))
    given.draft_token_ids = given.draft_token_ids.to(dtype)
    given.draft_token_ids[3] = token
    assert_rejected(given, 1)


@pytest.mark.parametrize("stats", [[NAN] * 4, [INF, 1, 0, 0], [0, 0, 0, 0], [0, -1, 0, 0]])
def test_stats_that_are_no_stats_are_rejected(stats: list[float]) -> None:
    given = always_accepted(batch())
    given.draft_stats = torch.tensor([[0.0, 1e3, 0.0, 0.0]] * 6)
    given.draft_stats[2] = torch.tensor(stats)
    assert_rejected(given, 0)
