"""What the tests read in README.md and the pages of docs, and where code cites docs/design.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DESIGN = ROOT / "docs" / "design.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
LABS = sorted((ROOT / "rdk_cuda" / "labs").glob("*/README.md"))

_DESIGN = r"(?:\bDESIGN\b|\bdocs/design\.md\b)"


class Block(NamedTuple):
    line: int
    """Where its first line of code is, from 1."""
    code: str


class Heading(NamedTuple):
    section: int
    """0 before the first numbered heading."""
    title: str
    anchor: str


class Citation(NamedTuple):
    section: int | None
    title: str | None


def python_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, block.start(1)) + 1, block[1])
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks, in which a # is not a heading."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def headings(page: Path) -> list[Heading]:
    section, found = 0, []
    for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        if numbered := re.fullmatch(r"(\d+)\. (.+)", title):
            section, title = int(numbered[1]), numbered[2]
        found.append(Heading(section, title, anchor))
    return found


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def citations(source: str) -> list[Citation]:
    """The places of docs/design.md that comments and docstrings name, wrapped over lines or not."""
    text = re.sub(r"\s*\n\s*(?://|#)?\s*", " ", source)
    found = [Citation(None, None) for _ in re.findall(_DESIGN, text)]
    for match in re.finditer(_DESIGN + r'(?: section (\d+))?,? (?:equation )?"([^"]+)"', text):
        found.append(Citation(int(match[1]) if match[1] else None, match[2]))
    for section in re.findall(_DESIGN + r",? sections? (\d+)", text):
        found.append(Citation(int(section), None))
    for sections in re.findall(r"sections? ([\d, and]+) of " + _DESIGN, text):
        found += [Citation(int(section), None) for section in re.findall(r"\d+", sections)]
    return found


def resolves(citation: Citation, page: list[Heading]) -> bool:
    """Whether there is such a section, and such a heading in it. A bare mention always does."""
    return citation == (None, None) or any(
        citation.section in (None, heading.section) and citation.title in (None, heading.title)
        for heading in page
    )
