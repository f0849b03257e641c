"""Bytes by formula are what a hand counts."""

from __future__ import annotations

import pytest

from profiling.bench.cases import Case
from profiling.bench.traffic import traffic, visited_rows


def case(operator: str, dtype: str = "bfloat16", **sizes: object) -> Case:
    shape = {"target_size": 1000, "draft_size": 200, "batch": 3, **sizes}
    return Case(operator, dtype, **shape)  # type: ignore[arg-type]


def test_a_draft_reads_its_logits_once_and_writes_a_token_and_stats() -> None:
    # Bias and one column of spread for all rows; then 200 bfloat16 logits, temperature, seed and
    # position for each, and out go a token and (max, sum, s_0).
    read = 200 * 4 + 200 * 4 + 3 * (200 * 2 + 4 + 8 + 8)
    written = 3 * (8 + 3 * 4)
    assert traffic(case("draft"), nnz=1000, rank=1) == read + written
    without_bias = traffic(case("draft"), nnz=1000, rank=1, is_biased=False)
    assert without_bias == read - 200 * 4 + written


def test_redistribute_writes_float32_over_the_whole_vocabulary() -> None:
    matrix = 1001 * 4 + 1000 * (4 + 4)
    prior = 1000 * 4
    read = 200 * 4 + 200 * 4 + matrix + prior + 3 * (200 * 2 + 4)
    assert traffic(case("redistribute"), nnz=1000, rank=1) == read + 3 * 1000 * 4


@pytest.mark.parametrize(
    ("accepted", "rows", "judged"),
    [((0, 0, 0), 3, 3), ((0, 2, 4), 1 + 3 + 5, 1 + 3 + 4), (None, 15, 12)],
)
def test_verify_reads_target_rows_up_to_the_first_rejection(
    accepted: tuple[int, ...] | None, rows: int, judged: int
) -> None:
    verify = case("verify", draft_length=4)
    assert visited_rows(verify, accepted) == rows
    # A judged draft: its token and row; two offsets and one entry (drafter token, weight, bias,
    # bfloat16 logit) of S; its stats (max, sum).
    draft = 8 + 4 + 2 * 4 + (4 + 4 + 4 + 2) + 2 * 4
    sequence = 2 * 4 + 2 * 8 + 4
    read = rows * 1000 * 2 + judged * draft + 3 * sequence
    assert traffic(verify, 1000, 0, accepted) == read + 3 * (5 * 8 + 4)
