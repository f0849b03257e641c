"""Chains and trees: how many drafts a pass accepts."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph

FILE = "trees/demo"
SHOWN = ("full drafter", "pruned drafter", "virtual+dynamic")
LENGTHS = (4, 8)
ROWS_OF = tuple(range(2, 9))


def trees_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content(f"{FILE}.json")
    lines = []
    for temperature in sorted({row["temperature"] for row in found["rows"]}):
        for name in SHOWN:
            cells = [f"{temperature:g}", name]
            for length in LENGTHS:
                cells += cells_of(row_of(found["rows"], name, temperature, length))
            lines.append(cells)
    titles = ["T", "drafter"]
    for length in LENGTHS:
        titles += [f"chain, K = {length}", "by block", "tree"]
    where = f"{RESULTS}/{FILE}"
    return "\n\n".join(
        [
            paragraph(
                "Accepted drafts a pass of the target, with the demo's pair: expectations given",
                f"the drafts, over {found['contexts']} contexts of {found['documents']} held-out",
                "documents. In brackets the 95 % interval of the gain over the chain by token. K",
                "is the length of the chain and the number of the tree's nodes, so the target",
                f"reads as many positions. The pruned drafters keep {found['keep']:.1%} of the",
                f"vocabulary ({link('data', f'{where}.json')},",
                f"{link('K from 2 to 8 and all drafters', f'{where}.md')}, made by",
                "`python -m profiling.studies.trees`):",
            ),
            table(titles, lines, "llr"),
        ]
    )


def rows_table(link: Link) -> str:
    """docs/benchmarks.md"""
    rates = (0.5, 0.6, 0.7, 0.8, 0.9)
    lines = [
        [f"{rate:g}", *(f"{rows_by_token(rate, drafts):.2f}" for drafts in ROWS_OF)]
        for rate in rates
    ]
    lines.append(["by block, any α", *(f"{drafts + 1}" for drafts in ROWS_OF)])
    return "\n\n".join(
        [
            paragraph(
                "Rows of the target's logits that `verify` reads for a sequence, 2 V_t bytes each",
                "in bfloat16, where each draft by itself is accepted with probability α. By token",
                "it stops behind the first rejection. By block it reads the last row only where",
                "the whole draft may be accepted, so these are the most:",
            ),
            table(["α", *(f"K = {drafts}" for drafts in ROWS_OF)], lines, "lr"),
        ]
    )


def rows_by_token(rate: float, drafts: int) -> float:
    """Rows up to the first rejection, the bonus token's included."""
    return sum(rate**place for place in range(drafts + 1))


def row_of(rows: list[Row], name: str, temperature: float, length: int) -> Row:
    """The one row of this drafter, temperature and K."""
    wanted = (name, temperature, length)
    (row,) = [r for r in rows if (r["method"], r["temperature"], r["drafts"]) == wanted]
    return row


def cells_of(row: Row) -> list[str]:
    """The chain's length, and the others' with their gains' intervals."""
    cells = [f"{row['chain by token'][0]:.2f}"]
    for way in ("chain by block", "tree"):
        _, low, high = row[f"{way}, gain"]
        cells.append(f"{row[way][0]:.2f} ({low:+.2f} to {high:+.2f})")
    return cells
