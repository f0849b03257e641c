"""Which strategy an operator takes at a shape (DESIGN section 6), and where on an axis it changes.

In words, what `plan_draft` and `plan_verify` in csrc/kernels decide on a GPU, and `for_each_row` in
csrc/cpu/threads.h on a CPU. Vocabularies are taken to be of serving size: a row of a few thousand
tokens fills no GPU, whoever takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from .cases import PAIR, Case

COLUMNS_PER_THREAD = 32768  # on the CPU: below this, another thread is not worth waking
MOST_TOGETHER = 4  # rows of `redistribute` that one CPU thread takes at once

SPLIT, WHOLE, ALONE = "rows split", "a row each", "one thread"


class Place(NamedTuple):
    """What of a machine decides: `multiprocessors` of a GPU or, where that is None, CPU threads."""

    multiprocessors: int | None
    threads: int


def strategy(case: Case, place: Place) -> str:
    """In words; "" where nothing is said of it (`gather_logits`, and `redistribute` on a GPU)."""
    if case.operator == PAIR:
        parts = [replace(case, operator=operator) for operator in ("draft", "verify")]
        return ", ".join(f"{part.operator}: {strategy(part, place)}" for part in parts)
    if case.operator == "gather_logits":
        return ""
    if place.multiprocessors is None:
        return _on_cpu(case, place.threads)
    if case.operator == "redistribute":
        return ""
    return WHOLE if case.batch >= place.multiprocessors else SPLIT


def _on_cpu(case: Case, threads: int) -> str:
    units, columns = case.batch, case.target_size
    if case.operator == "draft":
        columns = case.draft_size
    if case.operator == "redistribute":
        together = min(max(case.batch // threads, 1), MOST_TOGETHER)
        units, columns = -(-case.batch // together), together * (case.draft_size + columns)
    useful = min(threads, -(-units * columns // COLUMNS_PER_THREAD))
    if useful == 1:
        return ALONE
    return SPLIT if units < useful else WHOLE


def switches(case: Case, axis: str, sizes: Sequence[int], place: Place) -> list[dict[str, Any]]:
    """Where along an axis the strategy changes: the first size of the new one, and both names.

    Args:
        sizes: ascending; between two neighbours one change is found.
    """
    found = []
    for low, high in pairwise(sizes):
        before, after = (strategy(_resized(case, axis, size), place) for size in (low, high))
        if before == after:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if strategy(_resized(case, axis, middle), place) == before:
                low = middle
            else:
                high = middle
        found.append({"size": high, "from": before, "to": after})
    return found


def _resized(case: Case, axis: str, size: int) -> Case:
    change: dict[str, Any] = {axis: size}
    return replace(case, **change)
