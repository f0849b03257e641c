"""What drafting inside of the target's top-p gains."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph

DRAFTS = "draft-truncation/demo.json"


def drafts_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content(DRAFTS)
    rows = found["rows"]
    lines = [
        [
            f"T = {row['temperature']:g}, top-p {row['top_p']:g}",
            row["method"],
            *(f"{row[name][0]:.3f}" for name in ("acceptance", "acceptance_inside")),
            gain(row),
        ]
        for row in rows
    ]
    titles = ["target", "", "all columns", "inside the top-p", "tokens a pass, %"]
    return "\n\n".join(
        [
            paragraph(
                "Acceptance with a target that samples with top-p, by drafts from all of the",
                "drafter's columns and from those that the same top-p leaves of them, and what",
                f"that gains in tokens a pass at K = {rows[0]['draft_length']}, with 95 %",
                f"intervals; {rows[0]['positions']:,} positions of {rows[0]['documents']} held-out",
                f"modules, the demo's models ({link('data', f'{RESULTS}/{DRAFTS}')}, made by",
                f"`{found['command']}`):",
            ),
            table(titles, lines, "llr"),
        ]
    )


def gain(row: Row) -> str:
    """In percent, with its interval."""
    value, low, high = (100 * (end - 1) for end in row["tokens_ratio"])
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
