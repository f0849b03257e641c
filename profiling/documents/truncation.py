"""What truncation inside of the operators costs and saves, and drafting inside of it."""

from __future__ import annotations

from ..bench.truncation import case_cells, times_transformers
from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads

COSTS, DRAFTS = "bench-cpu/truncation.json", "draft-truncation/demo.json"


def costs_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rows = content(COSTS)["rows"]
    of = rows[0]
    load = max(row["load"] for row in rows)
    data = link("data", f"{RESULTS}/{COSTS}")
    lines = [
        [
            *case_cells(row),
            figure(row["times_untruncated"]),
            str(row["rounds"]),
            times_transformers(row),
        ]
        for row in rows
    ]
    titles = ["", "logits", "batch", "limits", "kept", "× untruncated", "rounds"]
    titles.append("Transformers, × ours")
    return "\n\n".join(
        [
            paragraph(
                f"Truncation on {threads(of)} of an {of['device_name']} with {of['capability']},",
                f"V_t {of['target_size']:,}, K = {of['draft_length']}, all target rows read, with",
                "a cold cache: how many columns a row keeps, the time next to that without limits,",
                "and the time of Transformers' warpers and the untruncated `verify`, or in",
                f"`Generate` of the library's processors, next to ours ({data}).",
                f"Others were at work on the machine (load up to {load:.0f} on two cores); the",
                "ratios are medians over rounds in turn:",
            ),
            table(titles, lines, "llrlr"),
        ]
    )


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
