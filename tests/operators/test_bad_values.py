"""Bad values have defined results (DESIGN section 4, "Bad input") and leave other rows alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.generators import Batch

pytestmark = pytest.mark.usefixtures("device")

SIZE = 2500
NAN, INF = math.nan, math.inf
ROWS = 5
BAD = 2  # The row that has no distribution.


def affinity() -> Affinity:
    """1250 drafter tokens, two chunks; every seventh from the fourth on is masked."""
    made = generators.affinity("mixed-2", SIZE)
    assert made.bias[3] == -INF
    return made


def spoil(case: str, logits: Tensor, temperature: Tensor, dynamic_logits: Tensor) -> None:
    """Take the distribution of row `BAD` away."""
    masked = affinity().bias == -INF
    row, extra = logits[BAD], dynamic_logits[BAD]
    if case.startswith("a temperature"):
        bad = {"NaN": NAN, "negative": -0.5, "infinite": INF, "minus infinity": -INF}
        temperature[BAD] = bad[case.removeprefix("a temperature that is ")]
    elif case == "NaN":
        row[1200] = NAN
    elif case == "NaN in a masked column":
        row[3] = NAN
    elif case == "+inf":
        row[0] = INF
    elif case == "+inf in a masked column":
        row[3] = INF
    elif case == "NaN in a dynamic column":
        extra[0] = NAN
    elif case == "+inf in a dynamic column":
        extra[1] = INF
    elif case == "no finite logit":
        row.fill_(-INF)
        extra.fill_(-INF)
    elif case == "no finite logit but masked ones":
        row[~masked] = -INF
        extra.fill_(-INF)
    elif case == "overflow by the temperature":
        row[7], temperature[BAD] = 1e30, 1e-30
    elif case == "overflow to -inf by the temperature":
        row[7], temperature[BAD] = -1e30, 1e-30
    elif case == "overflow in a masked column":
        row[3], temperature[BAD] = 1e30, 1e-30
    elif case == "overflow in a dynamic column":
        extra[0], temperature[BAD] = 1e30, 1e-30
    else:
        raise ValueError(case)


AT_ANY_TEMPERATURE = [
    "a temperature that is NaN",
    "a temperature that is negative",
    "a temperature that is infinite",
    "a temperature that is minus infinity",
    "NaN",
    "NaN in a masked column",
    "+inf",
    "+inf in a masked column",
    "NaN in a dynamic column",
    "+inf in a dynamic column",
    "no finite logit",
    "no finite logit but masked ones",
]
ABOVE_ZERO = [
    "overflow by the temperature",
    "overflow to -inf by the temperature",
    "overflow in a masked column",
    "overflow in a dynamic column",
]
CASES = [(case, t) for case in AT_ANY_TEMPERATURE for t in (1.0, 0.0)] + [
    (case, 1.0) for case in ABOVE_ZERO
]
OTHERS = [row for row in range(ROWS) if row != BAD]


def draft_rows(temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, temperatures, dynamic tokens, all of them used, and their logits."""
    return (
        generators.logits(ROWS, affinity().draft_size),
        torch.full((ROWS,), temperature),
        torch.randint(0, SIZE, (ROWS, 4), generator=generators.generator(1)).int(),
        generators.logits(ROWS, 4, seed=2),
    )


@pytest.mark.parametrize(("case", "temperature"), CASES)
def test_a_draft_row_without_distribution(case: str, temperature: float) -> None:
    logits, scale, tokens, values = draft_rows(temperature)
    integers = torch.arange(ROWS)
    good = affinity()

    def run() -> tuple[Tensor, Tensor, Tensor]:
        drafted, stats = torch.ops.rdk.draft(
            logits, scale, integers, integers, *good.by_draft, tokens, values
        )
        probs = torch.ops.rdk.redistribute(
            logits, scale, *good.by_target, good.row_top, tokens, values
        )
        return drafted, stats, probs

    before = run()
    spoil(case, logits, scale, values)
    drafted, stats, probs = run()
    assert drafted[BAD] == -1
    assert stats[BAD].isnan().all()
    assert probs[BAD].isnan().all()
    for actual, expected in zip((drafted, stats, probs), before, strict=True):
        assert torch.equal(actual[OTHERS], expected[OTHERS])
    expected_tokens, expected_stats = reference.draft(
        logits, scale, integers, integers, *good.by_draft, tokens, values
    )
    assert torch.equal(drafted, expected_tokens)
    torch.testing.assert_close(stats, expected_stats, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("token", [-1, -(2**31), SIZE, 2**31 - 1])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_an_unused_dynamic_column_is_not_read(token: int, bad: float, temperature: float) -> None:
    logits, scale, tokens, values = draft_rows(temperature)
    integers = torch.arange(ROWS)
    tokens[:, 3] = -1
    good = affinity()
    expected = torch.ops.rdk.draft(
        logits, scale, integers, integers, *good.by_draft, tokens, values
    )
    columns = (*good.by_target, good.row_top)
    probs = torch.ops.rdk.redistribute(logits, scale, *columns, tokens, values)
    tokens[:, 3], values[:, 3] = token, bad
    actual = torch.ops.rdk.draft(logits, scale, integers, integers, *good.by_draft, tokens, values)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
    again = torch.ops.rdk.redistribute(logits, scale, *columns, tokens, values)
    assert torch.equal(again, probs)


def test_a_tiny_temperature_without_overflow_is_nearly_greedy() -> None:
    logits, _, tokens, values = draft_rows(1.0)
    integers = torch.arange(ROWS)
    tiny = torch.full((ROWS,), 1e-30)
    good = affinity()
    drafted, stats = torch.ops.rdk.draft(
        logits, tiny, integers, integers, *good.by_draft, tokens, values
    )
    assert (drafted >= 0).all()
    assert torch.equal(stats[:, 1], torch.ones(ROWS))


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


def with_stats(batch: Batch, temperature: Tensor | None = None) -> Batch:
    zeros = torch.zeros(6, dtype=torch.int64)
    _, stats = torch.ops.rdk.draft(
        batch.draft_logits,
        torch.ones(6) if temperature is None else temperature,
        zeros,
        zeros,
        *batch.affinity.by_draft,
        batch.dynamic_tokens,
        batch.dynamic_logits,
    )
    return batch.replace(draft_stats=stats)


def verified(batch: Batch) -> tuple[list[list[int]], list[int]]:
    tokens, num_accepted = torch.ops.rdk.verify(*batch.arguments())
    expected = reference.verify(*batch.arguments(), dtype=torch.float64)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(num_accepted, expected[1])
    return tokens.tolist(), num_accepted.tolist()


def always_accepted(batch: Batch) -> Batch:
    """Target rows that put nearly everything on the drafted tokens."""
    target = batch.target_logits.clone()
    for b in range(3):
        for j in range(2):
            target[3 * b + j, batch.draft_token_ids[2 * b + j]] = 60.0
    return batch.replace(target_logits=target)


def spoil_target(case: str, row: Tensor, temperature: Tensor) -> None:
    if case == "NaN":
        row[2400] = NAN
    elif case == "+inf":
        row[0] = INF
    elif case == "no finite logit":
        row.fill_(-INF)
    elif case == "overflow":
        row[5] = 1e30
        temperature[1] = 1e-30
    else:
        temperature[1] = {"T NaN": NAN, "T negative": -1.0, "T infinite": INF}[case]


TARGET_CASES = ["NaN", "+inf", "no finite logit"]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("case", TARGET_CASES)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_output_stops_at_a_target_row_without_distribution(
    position: int, case: str, temperature: float
) -> None:
    given = always_accepted(batch(temperature))
    before = verified(given)
    assert before[1] == [2, 2, 2]
    spoil_target(case, given.target_logits[3 + position], given.target_temperature)
    tokens, num_accepted = verified(given)
    assert num_accepted[1] == position
    assert tokens[1] == before[0][1][:position] + [-1] * (3 - position)
    assert (tokens[0], tokens[2]) == (before[0][0], before[0][2])


@pytest.mark.parametrize("case", ["overflow", "T NaN", "T negative", "T infinite"])
def test_a_target_temperature_without_distribution(case: str) -> None:
    given = always_accepted(batch())
    before = verified(given)
    spoil_target(case, given.target_logits[3], given.target_temperature)
    tokens, num_accepted = verified(given)
    assert num_accepted == [2, 0, 2]
    assert tokens[1] == [-1, -1, -1]
    assert (tokens[0], tokens[2]) == (before[0][0], before[0][2])


@pytest.mark.parametrize("case", TARGET_CASES)
def test_target_rows_behind_the_first_rejection_do_not_matter(case: str) -> None:
    given = batch()
    for b in range(3):
        given.target_logits[3 * b, given.draft_token_ids[2 * b]] = -INF
    before = verified(given)
    assert before[1] == [0, 0, 0]
    for b in range(3):
        for behind in (1, 2):
            spoil_target(case, given.target_logits[3 * b + behind], given.target_temperature)
    assert verified(given) == before


def from_the_target(given: Batch, b: int, j: int) -> int:
    """The token that residual try 0 draws when q is 0 everywhere: a draw from p."""
    bonus_only = reference.verify(
        *given.replace(
            draft_token_ids=torch.full_like(given.draft_token_ids, SIZE),  # out of range: q = 0
            draft_rows=None,
            positions=given.positions + j,
            target_logits=given.target_logits.roll(-j, 0),
        ).arguments(),
        dtype=torch.float64,
    )
    return int(bonus_only[0][b, 0])


@pytest.mark.parametrize("target_temperature", [1.0, 0.0])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize(
    "case", [case for case, t in CASES if t > 0 and not case.startswith("a temperature")]
)
def test_a_draft_row_without_distribution_is_rejected_and_drawn_from_the_target(
    case: str, stats: bool, target_temperature: float
) -> None:
    """In every case q is 0 everywhere: nothing is accepted however likely the target thinks it."""
    given = always_accepted(batch(target_temperature))
    given.dynamic_logits = generators.logits(6, 4, seed=2)
    temperature = torch.ones(6)
    spoil(case, given.draft_logits, temperature, given.dynamic_logits)
    given.draft_temperature[1] = temperature[BAD]  # Draft row 2 is the first of sequence 1.
    if stats:
        given = with_stats(given, temperature)
    tokens, num_accepted = verified(given)
    assert num_accepted == [2, 0, 2]
    assert tokens[1] == [from_the_target(given, 1, 0), -1, -1]


@pytest.mark.parametrize("temperature", [NAN, -1.0, INF, 1e-42])
def test_a_draft_temperature_without_distribution_is_rejected(temperature: float) -> None:
    given = always_accepted(batch())
    given.draft_temperature[1] = temperature
    tokens, num_accepted = verified(given)
    assert num_accepted == [2, 0, 2]
    assert tokens[1] == [from_the_target(given, 1, 0), -1, -1]


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("row", [-2, 6, 2**31 - 1, -(2**31)])
def test_a_draft_row_out_of_range_is_rejected(row: int, stats: bool) -> None:
    given = always_accepted(batch())
    rows = torch.arange(6, dtype=torch.int32)
    rows[3] = row
    given.draft_rows = rows
    if stats:
        given = with_stats(given)
    tokens, num_accepted = verified(given)
    assert num_accepted[1] == 1
    assert tokens[1] == [int(given.draft_token_ids[2]), from_the_target(given, 1, 1), -1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("draft_temperature", [1.0, 0.0])
@pytest.mark.parametrize("token", [SIZE, -2, -(2**31), 2**31 - 1])
def test_a_drafted_id_out_of_range_is_rejected(
    token: int, draft_temperature: float, dtype: torch.dtype
) -> None:
    given = always_accepted(batch(draft_temperature=draft_temperature))
    given.draft_token_ids = given.draft_token_ids.to(dtype)
    given.draft_token_ids[3] = token
    tokens, num_accepted = verified(given)
    assert num_accepted[1] == 1
    assert tokens[1] == [int(given.draft_token_ids[2]), from_the_target(given, 1, 1), -1]


@pytest.mark.parametrize("token", [2**62, -(2**62), 2**32 + 5, -(2**32) + 5])
def test_a_wide_drafted_id_is_not_cut_to_32_bits(token: int) -> None:
    given = always_accepted(batch())
    given.draft_token_ids[2] = token
    _, num_accepted = verified(given)
    assert num_accepted[1] == 0


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 4, 2, 6],
        [0, -1, 4, 6],
        [-5, 2, 4, 6],
        [0, 2, 4, 7],
        [0, 2, 9, 6],
        [6, 6, 6, 6],
        [9, 9, 9, 9],
        [-1, -1, -1, -1],
        [2**31 - 1, -(2**31), 2**31 - 1, 0],
        [5, 3, 1, 0],
    ],
)
def test_offsets_that_make_no_sense_mean_no_drafts(offsets: list[int]) -> None:
    given = batch().replace(draft_offsets=torch.tensor(offsets, dtype=torch.int32))
    tokens, num_accepted = verified(given)
    for b, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if not 0 <= begin <= end <= 6:
            assert num_accepted[b] == 0
        assert tokens[b][num_accepted[b]] >= 0


@pytest.mark.parametrize("stats", [[NAN] * 4, [INF, 1, 0, 0], [0, 0, 0, 0], [0, -1, 0, 0]])
def test_stats_that_are_no_stats_are_rejected(stats: list[float]) -> None:
    given = always_accepted(batch())
    given.draft_stats = torch.tensor([[0.0, 1e3, 0.0, 0.0]] * 6)
    given.draft_stats[2] = torch.tensor(stats)
    tokens, num_accepted = verified(given)
    assert num_accepted == [2, 0, 2]
    assert tokens[1] == [from_the_target(given, 1, 0), -1, -1]


def test_drafts_without_any_drafter_row() -> None:
    """M = 0: every draft without a row of its own is rejected, and one-hot ones are not."""
    given = always_accepted(batch()).replace(dynamic_tokens=None, dynamic_logits=None)
    given.draft_logits = given.draft_logits[:0]
    _, num_accepted = verified(given)
    assert num_accepted == [0, 0, 0]
    _, num_accepted = verified(
        given.replace(draft_rows=torch.tensor([-1, -1, -1, 0, 5, -1], dtype=torch.int32))
    )
    assert num_accepted == [2, 1, 0]


@pytest.mark.parametrize("temperature", [NAN, -1.0, INF])
def test_the_draft_temperature_of_a_draft_without_distribution_does_not_matter(
    temperature: float,
) -> None:
    """`draft_rows` -1 makes q one-hot before a temperature is asked for."""
    given = always_accepted(batch())
    given = given.replace(draft_rows=torch.full((6,), -1, dtype=torch.int32))
    expected = verified(given)
    given.draft_temperature.fill_(temperature)
    assert verified(given) == expected == (expected[0], [2, 2, 2])
