"""Chains, by token and by block, and trees: how many drafts a pass accepts."""

from __future__ import annotations

from ..tables import table
from .results import RESULTS, Link, Row, content, paragraph, threads

PAIRS = {"trees/demo": "a model", "trees/eagle3": "EAGLE-3"}
SHOWN = ("full drafter", "pruned drafter", "virtual+dynamic")
LENGTHS = (4, 8)
WAYS = ("chain by token", "chain by block", "tree")
ROWS_OF = tuple(range(2, 9))


def trees_table(link: Link) -> str:
    """docs/benchmarks.md"""
    accepted, speeds = [], []
    for file, pair in PAIRS.items():
        rows = content(f"{file}.json")["rows"]
        for temperature in sorted({row["temperature"] for row in rows}):
            for name in SHOWN:
                of = [row_of(rows, name, temperature, length) for length in LENGTHS]
                first = [pair, f"{temperature:g}", name]
                accepted.append([*first, *(cell for row in of for cell in accepted_of(row))])
                speeds.append([*first, *(cell for row in of for cell in speeds_of(row))])
    found = content(f"{next(iter(PAIRS))}.json")
    titles = ["drafter", "T", ""]
    for length in LENGTHS:
        titles += [f"chain, K = {length}", "by block", "tree"]
    where = [
        f"{link(name, f'{RESULTS}/{file}.md')} ({link('data', f'{RESULTS}/{file}.json')})"
        for file, name in PAIRS.items()
    ]
    return "\n\n".join(
        [
            paragraph(
                "Accepted drafts a pass of the demo's target, with its drafter and with the",
                "EAGLE-3 drafter next to it, whose rows for tokens that it never had are lifted:",
                f"expectations given the drafts, over {found['contexts']} contexts of",
                f"{found['documents']} held-out documents. In brackets the 95 % interval of the",
                "gain over the chain by token. K is the length of the chain and the number of the",
                "tree's nodes, so the target reads as many positions. The pruned drafters keep",
                f"{found['keep']:.1%} of the vocabulary. K from 2 to 8, all drafters and the rows",
                f"that are read: {' and '.join(where)}, made by",
                "`python -m profiling.studies.trees`.",
            ),
            table(titles, accepted, "lrl"),
            paragraph(
                "Tokens a second of these at batch 1, of a step whose parts are measured one by",
                f"one, on {threads(found)} of an {found['device_name']} with",
                f"{found['capability']}; others were at work, so compare within a line only:",
            ),
            table(titles, speeds, "lrl"),
        ]
    )


def longer_table(link: Link) -> str:
    """README.md"""
    file, name, length = "trees/demo", "virtual+dynamic", LENGTHS[-1]
    found = content(f"{file}.json")
    temperatures = sorted({row["temperature"] for row in found["rows"]})
    rows = [row_of(found["rows"], name, temperature, length) for temperature in temperatures]
    cells = [accepted_of(row) for row in rows]
    titles = ("a chain, by token", "the same chain, by block", f"a tree of {length} nodes")
    return "\n\n".join(
        [
            paragraph(
                f"**Accepted drafts a pass**: {length} of the demo's drafter with virtual and",
                f"dynamic tokens, {100 * found['keep']:.3g} % of its vocabulary kept. In brackets",
                "the 95 % interval of the gain",
                f"({link('when to choose which', 'docs/benchmarks.md#chains-blocks-and-trees')}):",
            ),
            table(
                ["", *(f"T = {temperature:g}" for temperature in temperatures)],
                [[way, *(of[place] for of in cells)] for place, way in enumerate(titles)],
                "lr",
            ),
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


def accepted_of(row: Row) -> list[str]:
    """The chain's length, and the others' with their gains' intervals."""
    cells = [f"{row[WAYS[0]][0]:.2f}"]
    for way in WAYS[1:]:
        _, low, high = row[f"{way}, gain"]
        cells.append(f"{row[way][0]:.2f} ({low:+.2f} to {high:+.2f})")
    return cells


def speeds_of(row: Row) -> list[str]:
    """With their intervals."""
    found = [row[f"{way}, tokens per second"] for way in WAYS]
    return [f"{value:.0f} ({low:.0f} to {high:.0f})" for value, low, high in found]
