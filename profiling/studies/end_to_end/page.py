"""The rows of decoding steps as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...commands import page_of
from ...results import Row
from ...tables import figure, table
from .decoding_steps import BODY, CACHE, DRAFT, HEAD, PARTS, VERIFY

HEADER = ("", "head rows", "sampling", *PARTS, "step", "accepted", "tokens / s", "× alone")


def preamble(row: Row) -> str:
    """What is measured and what is computed."""
    return (
        f"Models: {row['models']}; V_t {row['target_size']:,}, {row['context']} tokens of context, "
        f"K = {row['draft_length']}, temperature 1. Milliseconds, medians of {row['rounds']} "
        "rounds, all rows in turn; the shares in brackets are those of the sum of the parts. "
        f"{BODY} and {HEAD} are {row['draft_length']} passes, {DRAFT} and {VERIFY} sampling, by "
        "PyTorch in as few operations as it takes or by our operators; "
        f"{CACHE} is what a cache costs that rolls back by sequence.\n\n"
        "Accepted is not these models' doing: it is the accepted length that calibration measured "
        f"for the head's method on the demo's models ({row['accepted_from']}). What is verified "
        "is made to be accepted that far, as the time depends on it, and tokens a second are "
        "(1 + accepted) × batch / time of a step."
    )


def section(rows: Sequence[Row]) -> list[str]:
    """One batch."""
    return [f"## Batch {rows[0]['batch']}", table(HEADER, map(cells, rows), "lrlr")]


def cells(row: Row) -> list[str]:
    """In the order of the header."""
    parts = [
        f"{figure(1000 * row['parts'][part])} ({row['shares'][part]:.0%})"
        if part in row["parts"]
        else ""
        for part in PARTS
    ]
    return [
        row["head"],
        f"{row['head_rows']:,}",
        row["sampling"],
        *parts,
        figure(1000 * row["step_seconds"]),
        f"{row['accepted_length']:.2f}",
        figure(row["tokens_per_second"]),
        f"{row['speed_up']:.2f}",
    ]


page = partial(page_of, "A decoding step and its parts", preamble, "batch", section)
