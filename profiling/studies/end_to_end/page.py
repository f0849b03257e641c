"""The rows of decoding steps as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from ...commands import busy, origin
from ...results import Row
from ...tables import figure, table
from .decoding_steps import BODY, CACHE, DRAFT, HEAD, PARTS, VERIFY


def page(rows: Sequence[Row]) -> str:
    """A table for each batch of each run, and how to read it."""
    lines = ["# A decoding step and its parts"]
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        lines += ["", *preamble(own[-1])]
        for batch in dict.fromkeys(row["batch"] for row in own):
            lines += ["", *section([row for row in own if row["batch"] == batch])]
    return "\n".join([*lines, ""])


def preamble(row: Row) -> list[str]:
    """Where, when, and what is measured and what is computed."""
    lines = [
        origin(row),
        "",
        f"Models: {row['models']}; V_t {row['target_size']:,}, {row['context']} tokens of context, "
        f"K = {row['draft_length']}, temperature 1. Milliseconds, medians of {row['rounds']} "
        "rounds, all rows in turn; the shares in brackets are those of the sum of the parts. "
        f"{BODY} and {HEAD} are {row['draft_length']} passes, {DRAFT} and {VERIFY} sampling, by "
        "PyTorch in as few operations as it takes or by our operators; "
        f"{CACHE} is what a cache costs that rolls back by sequence.",
        "",
        "Accepted is not these models' doing: it is the accepted length that calibration measured "
        f"for the head's method on the demo's models ({row['accepted_from']}). What is verified "
        "is made to be accepted that far, as the time depends on it, and tokens a second are "
        "(1 + accepted) × batch / time of a step.",
    ]
    return [*lines, *(line for warning in busy([row]) for line in ("", warning))]


def section(rows: Sequence[Row]) -> list[str]:
    """One batch."""
    header = ("", "head rows", "sampling", *PARTS, "step", "accepted", "tokens / s", "× alone")
    return [
        f"## Batch {rows[0]['batch']}",
        "",
        table(header, map(cells, rows), "lrlr"),
    ]


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
