"""HTML from strings: whatever is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

Cell = object
"""Text, or markup of `element`."""


class Html(str):
    """Markup."""

    __slots__ = ()


def escaped(value: Cell) -> Html:
    """Markup as it is, anything else as text."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def joined(parts: Iterable[Cell], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(html.escape(between).join(escaped(part) for part in parts))


def element(tag: str, *children: Cell, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, and a hyphen is written as an underscore.

    Example:
        >>> element("a", "5 < 6", href="#five", class_="figure")
        '<a href="#five" class="figure">5 &lt; 6</a>'
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{written}>{joined(children)}</{tag}>")


def paragraph(*children: Cell, **attributes: object) -> Html:
    """A paragraph."""
    return element("p", *children, **attributes)


def table(
    titles: Sequence[Cell], lines: Iterable[Sequence[Cell]], words: str, *, left: int = 1
) -> Html:
    """A table that scrolls where the window is narrower.

    Args:
        words: its caption.
        left: so many columns hold words, the others figures.
    """
    sides = ["words" if place < left else None for place in range(len(titles))]
    head = element(
        "tr",
        *(
            element("th", title, scope="col", class_=side)
            for title, side in zip(titles, sides, strict=True)
        ),
    )
    body = [
        element(
            "tr",
            element("th", line[0], scope="row"),
            *(
                element("td", cell, class_=side)
                for cell, side in zip(line[1:], sides[1:], strict=True)
            ),
        )
        for line in lines
    ]
    whole = element(
        "table",
        element("caption", words),
        element("thead", head),
        element("tbody", *body),
    )
    return scrolling(whole, words)


def drawing(svg: str, words: str) -> Html:
    """A picture with what there is to see."""
    return element("figure", scrolling(Html(svg), words), element("figcaption", words))


def below(text: Cell, *others: Cell) -> Html:
    """Lines in one cell, the first the main one."""
    return joined([text, *(element("small", other) for other in others if other)])


def scrolling(content: Html, words: str) -> Html:
    """What scrolls by itself, with the keyboard too."""
    return element("div", content, class_="scroll", role="region", tabindex="0", aria_label=words)
