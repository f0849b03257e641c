"""EAGLE-3 drafters of a real model: tokens a second."""

from __future__ import annotations

from typing import Any

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph, threads

DECODING = "gemma-decoding/cpu.json"


def decoding_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = content(DECODING)["rows"]
    columns = sorted({(row["batch"], -row["temperature"]) for row in rows})
    best: dict[Any, Row] = {}
    for row in rows:
        key = row["decoder"], (row["batch"], -row["temperature"])
        if key not in best or row["tokens_per_second"][0] > best[key]["tokens_per_second"][0]:
            best[key] = row
    lines = [
        [name, *(speed_of(best[name, column]) for column in columns)]
        for name in dict.fromkeys(row["decoder"] for row in rows)
    ]
    titles = [f"batch {batch}, T = {-at:g}" for batch, at in columns]
    first = rows[0]
    return "\n\n".join(
        [
            paragraph(
                f"Tokens a second with Gemma 3 270M in {first['dtype']} on {threads(first)} of an",
                f"{first['device_name']}: the median of {first['rounds']} rounds at the best draft",
                "length K, in brackets × the target alone, accepted drafts a pass, and K",
                f"({link('data', f'{RESULTS}/{DECODING}')},",
                f"{link('all K and the parts of a step', tables_of(DECODING))},",
                "made by `python -m profiling.studies.gemma_decoding`):",
            ),
            table(["", *titles], lines, "lr"),
        ]
    )


def tables_of(data: str) -> str:
    """The page next to a result file."""
    return f"{RESULTS}/{data.removesuffix('.json')}.md"


def speed_of(row: Row) -> str:
    """A decoder's cell."""
    speed, ratio = row["tokens_per_second"][0], row["speed_up"][0]
    if row["draft_length"] == 0:
        return f"{speed:.1f} ({ratio:.2f} ×)"
    return f"{speed:.1f} ({ratio:.2f} ×, {row['accepted_length']:.2f}, {row['draft_length']})"
