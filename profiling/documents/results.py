"""The committed results, and how the documents quote them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "profiling/results"

Row: TypeAlias = dict[str, Any]
Link: TypeAlias = Callable[[str, str], str]
"""Makes a link, as the page needs it, from a text and a path in the repository."""


def content(file: str) -> dict[str, Any]:
    """The content of a committed result."""
    found: dict[str, Any] = json.loads((ROOT / RESULTS / file).read_text(encoding="utf-8"))
    return found


def threads(found: Row) -> str:
    """The number of threads, in words."""
    return "one thread" if found["threads"] == 1 else f"{found['threads']} threads"


def paragraph(*sentences: str) -> str:
    """In lines, like the rest of the page; code, links and percentages are not broken."""
    text = re.sub(
        r"`[^`]*`| %|\[[^]]*\]", lambda kept: kept[0].replace(" ", "\0"), " ".join(sentences)
    )
    lines = textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def share_of(interval: Sequence[float | None]) -> str:
    """In percent, with its ends where there are any."""
    value, low, high = (None if end is None else 100 * end for end in interval)
    return f"{value:.0f}" + ("" if low is None or high is None else f" [{low:.0f}, {high:.0f}]")
