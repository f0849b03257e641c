"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["table"]


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Titles, then lines of cells; a bar in a cell would end it, and is escaped.

    Example:
        >>> print(table(["kernel", "us"], [["a | b", "3"]]))
        | kernel | us |
        | --- | --- |
        | a \\| b | 3 |
    """
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in rows)


def cell(text: object) -> str:
    """On one line."""
    return str(text).replace("\n", " ").replace("|", "\\|")
