"""Figures and where they come from: each becomes a link to the row of the file that holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .machine import answer
from .markup import Cell, Html, element, joined
from .results import ResultError, flattened

Content = dict[str, Any]
Command = Callable[[Content], str]
"""How a file was made, where it does not say so itself."""

ABOUT = (  # said once for many rows, or of no use beside them
    *(
        "run",
        "date",
        "command",
        "device",
        "device_name",
        "threads",
        "multiprocessors",
        "capability",
    ),
    *("version", "torch", "cuda", "driver", "commit", "dirty", "format", "format_version"),
)
LONGEST = 160  # characters of a value that the appendix shows


@dataclass(frozen=True)
class Source:
    """A result file: its content, its address seen from the page, and its last commit."""

    path: Path
    address: str
    content: Content
    command: str | None
    committed: str | None


@dataclass(frozen=True)
class Entry:
    """A part of a file, such as `rows[3]`; all of it if `place` is empty."""

    source: Source
    place: str
    value: Mapping[str, Any]

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.source.address}-{self.place}")
        return f"row-{words.strip('-')}"

    def about(self, name: str) -> Any:
        """A fact that the row or, failing that, its file states."""
        for facts in (self.value, self.source.content, self.source.content.get("versions")):
            if isinstance(facts, dict) and facts.get(name) is not None:
                return facts[name]
        return None


class Evidence:
    """The files that have been opened, and the rows that have been cited.

    Args:
        root: addresses are relative to the page and, in words, to this folder.
        page: where the page will be.
    """

    def __init__(self, root: Path, page: Path) -> None:
        self.root = root.resolve()
        self.page = page.resolve()
        self.sources: list[Source] = []
        self.known: dict[int, Entry] = {}  # by identity: rows are passed around, not copied
        self.cited: dict[str, Entry] = {}

    def open(
        self, path: Path, read: Callable[[Path], Content], command: Command | None = None
    ) -> Content:
        """Read a file, whose rows can be cited from then on."""
        path = path.resolve()
        content = read(path)
        words = content.get("command") or (command(content) if command else None)
        source = Source(path, self.address(path), content, words, last_commit(path))
        self.sources.append(source)
        for place, value in parts(content):
            self.known[id(value)] = Entry(source, place, value)
        return content

    def address(self, path: Path) -> str:
        """In words: relative to the root where it is below it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name

    def link(self, path: Path, text: Cell | None = None) -> Html:
        """A link from the page to a file."""
        path, folder = path.resolve(), self.page.parent
        up = 0
        while not path.is_relative_to(folder):
            folder, up = folder.parent, up + 1
        href = quote("/".join([".."] * up + list(path.relative_to(folder).parts)))
        return element("a", self.address(path) if text is None else text, href=href)

    def cite(self, value: Mapping[str, Any], text: Cell) -> Html:
        """A figure, linked to its row in the appendix.

        Raises:
            KeyError: a row of no file that was opened.
        """
        entry = self.known[id(value)]
        self.cited[entry.anchor] = entry
        return element("a", text, href=f"#{entry.anchor}", class_="figure")

    def appendix(self) -> Html:
        """Every cited row under its file and run."""
        return joined(self.of_source(source) for source in self.sources)

    def of_source(self, source: Source) -> Html:
        """The rows of a file."""
        runs: dict[Html, list[Entry]] = {}
        for entry in self.cited.values():
            if entry.source is source:
                runs.setdefault(origin(entry), []).append(entry)
        blocks = [
            element(
                "div",
                element("p", joined([self.link(source.path), about], " · "), class_="origin"),
                element("ul", *(self.line(entry) for entry in ordered(entries))),
            )
            for about, entries in runs.items()
        ]
        return element("section", *blocks, class_="source") if blocks else Html("")

    def line(self, entry: Entry) -> Html:
        """A row and what is in it."""
        # Of a file as a whole, parts that have rows of their own are not repeated.
        values = flattened(dict(entry.value)) if entry.place else entry.value
        facts = [
            joined([name, " ", element("b", shown(value))])
            for name, value in values.items()
            if name not in ABOUT and value is not None and not isinstance(value, (dict, list))
        ]
        place = element("code", entry.place or "the file")
        return element("li", joined([place, *facts], " · "), id=entry.anchor)


def parts(value: Any, place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object of a JSON document with its place in it."""
    if isinstance(value, dict):
        yield place, value
        for name, part in value.items():
            yield from parts(part, f"{place}.{name}" if place else name)
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from parts(part, f"{place}[{number}]")


def ordered(entries: list[Entry]) -> list[Entry]:
    """In the order of the file."""

    def key(entry: Entry) -> list[Any]:
        return [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", entry.place)]

    return sorted(entries, key=key)


def origin(entry: Entry) -> Html:
    """When, on what, at which commit and how."""
    device = entry.about("device_name") or entry.about("machine") or entry.about("device")
    if device and entry.about("threads"):
        device = f"{device}, {entry.about('threads')} threads"
    commit = entry.about("commit")
    if commit:
        commit = f"commit {commit[:12]}{' with changes' if entry.about('dirty') else ''}"
    elif entry.source.committed:
        commit = f"commit not in the file, which came with {entry.source.committed[:12]}"
    versions = [
        f"{name} {entry.about(name)}" for name in ("torch", "cuda", "driver") if entry.about(name)
    ]
    command = entry.value.get("command") or entry.source.command
    return joined(
        [
            entry.about("run") or entry.about("date") or "no date in the file",
            device or "no device in the file",
            *versions,
            commit or "no commit in the file",
            element("code", command) if command else "no command in the file",
        ],
        " · ",
    )


def shown(value: Any) -> str:
    """A value in six digits, cut where it is long."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def last_commit(path: Path) -> str | None:
    """The last commit that changed a file; None where git does not know it."""
    found = answer("git", "-C", str(path.parent), "log", "-1", "--format=%H", "--", path.name)
    return found or None


def read_json(path: Path) -> Content:
    """Any result file. Raises ResultError where it is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path}: is no result file ({error}); mend or remove it") from None
    if not isinstance(content, dict):
        raise ResultError(f"{path}: is no JSON object; mend or remove it")
    return content
