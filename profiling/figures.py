"""What the pictures of benchmarks share: the operators' colours, and figures as part of a page."""

from __future__ import annotations

import html
import io
import re
from typing import Any

from .cases import PAIR

# Of middle lightness: three times as light or as dark as a white and as a black page, and more.
COLOURS = {
    "draft": "#7d6ba0",
    "verify": "#c1440e",
    PAIR: "#17805b",
    "redistribute": "#2f6fa8",
    "gather_logits": "#8a7a1c",
}

# Colours without hue: text, ground, grid and frames, as properties that a page sets.
_PROPERTIES = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#b0b0b0": "var(--line)",
    "#cccccc": "var(--line)",
    "#444444": "var(--faint)",
    "#777777": "var(--faint)",
    "#808080": "var(--faint)",
}


def inline_svg(figure: Any, name: str, words: str) -> str:
    """A matplotlib figure as an SVG element for HTML, in the colours of the page around it.

    The page sets the CSS properties --ink, --paper, --line and --faint. Text stays text.

    Args:
        name: unique in the page; ids begin with it.
        words: what is to be seen, for those who cannot.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = file.getvalue()
    element = text[text.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", element)
    for colour, prop in _PROPERTIES.items():
        element = re.sub(colour, prop, element, flags=re.IGNORECASE)
    return element.replace("<svg ", f'<svg role="img" aria-label="{html.escape(words)}" ', 1)
