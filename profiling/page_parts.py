"""What the page's sections are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .figures import inline_svg
from .markup import Html, drawing, element, paragraph


class Headline(NamedTuple):
    """A figure for the top of the page."""

    words: str
    figure: Html


class Section(NamedTuple):
    """A part of the page."""

    name: str
    title: str
    body: Html
    headlines: Sequence[Headline] = ()


def missing(name: str, title: str, command: str) -> Section:
    """What stands where there is no result file."""
    return Section(name, title, nothing("No results yet; made by ", element("code", command), "."))


def nothing(*words: object) -> Html:
    """Something that is not there, said plainly."""
    return paragraph(*words, class_="nothing")


def picture(draw: Callable[[], Any], name: str, words: str) -> Html:
    """A matplotlib figure in the page; nothing where there is none to draw."""
    figure = draw()
    return Html("") if figure is None else drawing(inline_svg(figure, f"plot-{name}", words), words)
