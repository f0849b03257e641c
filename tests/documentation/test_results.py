"""The documents quote no measured figure but those of a committed result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from profiling.documents import chart, pages

from .markdown import LABS, PAGES, ROOT

TABLE = re.compile(r"^<!-- table (.+) -->$", re.MULTILINE)
END = "<!-- end of table -->"


def test_every_table_is_what_the_program_writes() -> None:
    for page in pages.pages():
        text = page.read_text(encoding="utf-8")
        assert pages.filled(text, page) == text, f"run python -m profiling.documents: {page.name}"


def test_every_table_stands_once_and_is_closed() -> None:
    texts = [page.read_text(encoding="utf-8") for page in {*PAGES, *pages.pages()}]
    named = [name for text in texts for name in TABLE.findall(text)]
    assert sorted(named) == sorted(pages.TABLES)
    for text in texts:
        closed = re.findall(rf"^{END}$", text, re.MULTILINE)
        assert len(closed) == len(TABLE.findall(text))


def test_tables_with_several_columns_of_figures_stand_nowhere_else() -> None:
    """Such as were copied by hand: three cells in a line that begin with a digit."""
    row = re.compile(r"^\|(?:[^|\n]*\|)*?(?:\s*\d[^|\n]*\|){3,}", re.MULTILINE)
    assert row.search("| | 1 | 2.5 | 3 µs |")
    for page in PAGES:
        outside = re.sub(
            rf"<!-- table .+? -->.*?{END}", "", page.read_text("utf-8"), flags=re.DOTALL
        )
        assert not row.search(outside), page.name


def test_every_figure_of_a_table_comes_from_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: other results give other tables, each of them."""

    def altered(value: object) -> object:
        if isinstance(value, dict):
            return {key: altered(of) for key, of in value.items() if key not in KEYS} | {
                key: value[key] for key in KEYS if key in value
            }
        if isinstance(value, list):
            return [altered(of) for of in value]
        return 1.5 * value if isinstance(value, float) else value

    written = {name: write(link) for name, write in pages.TABLES.items()}
    for module in ("acceptance", "engines", "served", "times"):
        path = f"profiling.documents.{module}.content"
        monkeypatch.setattr(path, lambda file: altered(json.loads((FOLDER / file).read_text())))

    for name, write in pages.TABLES.items():
        assert write(link) != written[name], name


KEYS = ("temperature", "keep")  # what rows are found by
FOLDER = ROOT / "profiling" / "results"


def link(words: str, path: str) -> str:
    return f"[{words}]({path})"


def test_the_chart_shows_the_results() -> None:
    shown = chart.source_of(pages.CHART)
    assert shown == pages.chart_figures()
    assert shown["milliseconds"]["ours"] < shown["milliseconds"]["compiled"]


def uncited(pages: list[Path]) -> set[Path]:
    """Committed results that none of the pages, nor a cited page of the results, links to."""
    there = {file for file in FOLDER.rglob("*") if file.is_file()}
    cited: set[Path] = set()
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        found = {(page.parent / link).resolve() for link in links} & there - cited
        cited |= found
        waiting += [file for file in found if file.suffix == ".md"]
    return there - cited


def test_a_result_is_committed_only_where_a_document_cites_it() -> None:
    assert not uncited([*PAGES, *LABS])
    assert uncited([ROOT / "README.md"]), "the control: the README alone cites few of them"
