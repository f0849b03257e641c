"""Bytes that an operator has to move, by formula: what its floor is computed from.

Everything counts once, however often it is read again from a cache. What all rows share (bias,
spread, S, priors) counts once for a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cases import OVERLAP, PAIR, Case

FLOAT, INT, LONG = 4, 4, 8


def traffic(
    case: Case,
    nnz: int,
    rank: int,
    accepted: Sequence[int] | None = None,
    *,
    is_biased: bool = True,
) -> int:
    """Bytes that one call reads and writes.

    Args:
        nnz, rank, is_biased: of the case's affinity.
        accepted: how many drafts of each sequence are accepted, so that only target rows up to the
            first rejection count (DESIGN section 3). None: all target rows count, as where few
            sequences are split over a GPU.
    """
    item = case.torch_dtype.itemsize
    shared = case.draft_size * FLOAT * (is_biased + rank)  # bias and spread
    if case.operator == "draft":
        return shared + _draft(case, item, rank)
    if case.operator == "redistribute":
        return shared + _redistribute(case, item, nnz, rank)
    if case.operator == "gather_logits":
        return _gather_logits(case, item)
    if case.operator == OVERLAP:
        return 2 * shared + _overlap(case, item, nnz, rank)
    drafts = case.draft_length if case.operator == PAIR else 0
    sums = drafts + (0 if case.stats else 1)
    return (
        sums * shared + drafts * _draft(case, item, rank) + _verify(case, item, nnz, rank, accepted)
    )


def visited_rows(case: Case, accepted: Sequence[int] | None) -> int:
    """Target rows that a verification looks at: the accepted ones and the one it stops at."""
    if accepted is None:
        return case.batch * (case.draft_length + 1)
    return sum(count + 1 for count in accepted)


def _draft(case: Case, item: int, rank: int) -> int:
    row = case.draft_size * item + FLOAT + 2 * LONG  # temperature, step key, position
    written = LONG + FLOAT * (2 + rank)  # token, stats
    return case.batch * (row + written)


def _redistribute(case: Case, item: int, nnz: int, rank: int) -> int:
    matrix = INT * (case.target_size + 1) + nnz * (INT + FLOAT)
    prior = rank * case.target_size * FLOAT
    row = case.draft_size * item + FLOAT + case.target_size * FLOAT  # temperature, q
    return matrix + prior + case.batch * row


def _gather_logits(case: Case, item: int) -> int:
    gathered = case.columns * (case.hidden_size * item + INT + item)  # row, token, logit
    return case.batch * (gathered + case.hidden_size * item)


def _overlap(case: Case, item: int, nnz: int, rank: int) -> int:
    """The matrix by target, then by drafter; each way reads the drafter's row and V_t bits."""
    matrix = INT * (case.target_size + case.draft_size + 2) + 2 * nnz * (INT + FLOAT)
    prior = rank * case.target_size * FLOAT
    row = case.target_size * (case.torch_target_dtype.itemsize + 2 / 8)
    row += 3 * case.draft_size * item  # read twice, and its gradient written
    return matrix + prior + round(case.batch * row)


def _verify(case: Case, item: int, nnz: int, rank: int, accepted: Sequence[int] | None) -> int:
    """Target rows, and q at the drafted tokens that are judged."""
    length = case.draft_length
    judged = [length] * case.batch if accepted is None else [min(a + 1, length) for a in accepted]
    # A column of S (its entry's drafter token, weight, bias, logit), and the priors.
    column = 2 * INT + round(nnz / case.target_size * (INT + 2 * FLOAT + item)) + rank * FLOAT
    stats = FLOAT * (2 + rank)
    read = visited_rows(case, accepted) * case.target_size * case.torch_target_dtype.itemsize
    read += sum(judged) * (LONG + INT + column + stats)  # token, draft row
    read += case.batch * (2 * FLOAT + 2 * LONG + INT)  # temperatures, step key, position, offset
    if not case.stats:
        read += sum(judged) * (case.draft_size * item - stats)
    return read + case.batch * ((length + 1) * LONG + INT)  # tokens, number of accepted ones
