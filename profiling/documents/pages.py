"""The documents, and the tables between comments in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .acceptance import (
    CHARTED,
    COLUMNS,
    lifted_table,
    pruning_table,
    recovered,
    screens_table,
    tokenizers_table,
    trees_table,
)
from .chart import source_of
from .engines import engine_table
from .results import RESULTS, ROOT, Link
from .served import served_table
from .times import (
    PREDICTED,
    bounds_table,
    decoding_table,
    demo_table,
    gain_on_cpu_table,
    gain_table,
    gpu_table,
    host_table,
    operators_table,
    passes_table,
    peers,
    predictions_table,
    workload,
)

CHART = ROOT / "docs" / "gain.png"


def pages() -> list[Path]:
    """The documents, README first, and a page beside results that no benchmark writes."""
    documents = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", *documents, ROOT / RESULTS / f"{PREDICTED}.md"]


TABLES: dict[str, Callable[[Link], str]] = {
    "sampling a step": gain_table,
    "sampling a step on a CPU": gain_on_cpu_table,
    "decoding with the demo's models": demo_table,
    "decoding with a real model": decoding_table,
    "passes of a real model": passes_table,
    "operators": operators_table,
    "operators on a GPU": gpu_table,
    "kernels as predicted": predictions_table,
    "kernels that miss their aim": bounds_table,
    "a step on the host": host_table,
    "chains and trees": trees_table,
    "screens": screens_table,
    "lifted rows": lifted_table,
    "acceptance and pruning": pruning_table,
    "other tokenizers": tokenizers_table,
    "drafters in vLLM": engine_table,
    "models that are served": served_table,
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
            method: [[round(100 * end) for end in shares[method, at]] for at in COLUMNS]
            for method in CHARTED
        },
        "columns": [list(column) for column in COLUMNS],
    }
