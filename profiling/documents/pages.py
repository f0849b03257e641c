"""The documents, and the tables between comments in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .acceptance import (
    COLUMNS,
    acceptance_table,
    cool_demo_table,
    cost_table,
    demo_table,
    dissected_table,
    growth_sentence,
    real_table,
    recovered,
    recovered_table,
    screens_table,
)
from .chart import source_of
from .drafts import longer_table, rows_table, trees_table
from .eagle3 import decoding_table, heads_table, lifted_table, losses_table
from .engines import engine_table, gemma_table
from .kernels import code_table, launches_table, orders_table
from .results import ROOT, Link
from .sampling import gain_table, operators_table, peers, peers_table, step_table, workload
from .truncation import costs_table, drafts_table

CHART = ROOT / "docs" / "gain.png"


def pages() -> list[Path]:
    """The documents, README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


TABLES: dict[str, Callable[[Link], str]] = {
    "gain": gain_table,
    "recovered with a real model": real_table,
    "recovered": recovered_table,
    "operators": operators_table,
    "peers": peers_table,
    "decoding step": step_table,
    "demo": demo_table,
    "demo at 0.7": cool_demo_table,
    "acceptance report": acceptance_table,
    "calibration cost": cost_table,
    "real model": screens_table,
    "bounds of virtual tokens": dissected_table,
    "first-order growth": growth_sentence,
    "EAGLE-3 drafters": losses_table,
    "recovered for EAGLE-3 drafters": heads_table,
    "lifted rows": lifted_table,
    "decoding with a real model": decoding_table,
    "drafts inside of top-p": drafts_table,
    "truncation": costs_table,
    "longer accepted drafts": longer_table,
    "chains and trees": trees_table,
    "rows read": rows_table,
    "drafters in vLLM": engine_table,
    "Gemma in vLLM": gemma_table,
    "code of the kernels": code_table,
    "launches of the operators": launches_table,
    "orders of verify": orders_table,
}

_MARKED = re.compile(r"^<!-- table (.+?) -->\n.*?^<!-- end of table -->$", re.DOTALL | re.MULTILINE)


def filled(text: str, page: Path) -> str:
    """A page's text with all of its tables as the results have them.

    Raises:
        KeyError: a table that nobody writes.
    """
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)

    def link(words: str, path: str) -> str:
        return f"[{words}]({up}{path})"

    def block(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- table {name} -->\n\n{TABLES[name](link)}\n\n<!-- end of table -->"

    return _MARKED.sub(block, text)


def differing() -> list[Path]:
    """Pages, and the chart, that differ from the results."""
    pairs = [(page, page.read_text(encoding="utf-8")) for page in pages()]
    found = [page for page, text in pairs if filled(text, page) != text]
    if source_of(CHART) != chart_figures():
        found.append(CHART)
    return found


def chart_figures() -> dict[str, Any]:
    """What the README's chart shows."""
    rows, shares = {row["peer"]: row for row in peers()}, recovered()
    names = ("eager", "compiled", "ours")
    return {
        "workload": workload(rows["ours"]),
        "milliseconds": {name: round(rows[name]["median_us"] / 1000, 1) for name in names},
        "recovered": {
            method: [[round(end) for end in shares[method, at[0], at[1]]] for at in COLUMNS]
            for method in ("virtual tokens", "dynamic tokens", "virtual+dynamic")
        },
        "columns": [list(column) for column in COLUMNS],
    }
