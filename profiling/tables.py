"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "---:"}


def table(titles: Sequence[str], lines: Iterable[Sequence[str]], alignment: str = "l") -> str:
    """Titles, then lines of cells; a bar in a cell would end it, and is escaped.

    Args:
        alignment: l or r for each column; the last one stands for all that follow.

    Example:
        >>> print(table(["kernel", "us"], [["a | b", "3"]], "lr"))
        | kernel | us |
        | --- | ---: |
        | a \\| b | 3 |
    """
    rules = [_RULES[side] for side in alignment.ljust(len(titles), alignment[-1])]
    rows = [titles, rules, *lines]
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in rows)


def cell(text: object) -> str:
    """A cell on one line."""
    return str(text).replace("\n", " ").replace("|", "\\|")


def figure(value: float) -> str:
    """A number with three significant digits, without exponent."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
