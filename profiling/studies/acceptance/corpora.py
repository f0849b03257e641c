"""The texts of the acceptance report: source code, and English prose that machines have anyway.

Code is the demo's (`examples.demo.corpus`). Prose is what comes with a Python interpreter and with
Debian: the language reference that `help()` shows, Python's licence, the licences of the installed
distributions and those of /usr/share/common-licenses. Sources that are not there are left out, so
figures on prose depend a little on the machine; `Corpus.sources` says what was found.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.demo.corpus import held_out_files, read_text, standard_library, training_files

__all__ = ["Corpus", "Document", "code", "prose"]

COMMON_LICENSES = Path("/usr/share/common-licenses")
LICENSE_NAME = re.compile(r"(licen[cs]e|copying|copyright|notice)", re.IGNORECASE)

SHINGLE = 8  # words; two texts that share as many in a row have them from one another
SHORTEST = 1000  # characters of a document
HELD_OUT_SHARE = 0.3


class Document(NamedTuple):
    """A text of one file or chapter; its name begins with its source."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents to calibrate on, and others, that share nothing with them, to evaluate on."""

    name: str
    calibration: Sequence[Document]
    held_out: Sequence[Document]

    @property
    def sources(self) -> dict[str, int]:
        """How many documents each source gave."""
        names = [document.name for document in (*self.calibration, *self.held_out)]
        return dict(Counter(name.partition("/")[0] for name in names))


def code() -> Corpus:
    """The files that the demo's models were trained on, and its held-out ones."""
    root = standard_library()

    def documents(files: Iterable[Path]) -> list[Document]:
        return [Document(f"library/{file.relative_to(root)}", read_text(file)) for file in files]

    return Corpus("code", documents(training_files()), documents(held_out_files()))


def prose() -> Corpus:
    """The English text on this machine, without repetitions, split by the documents' names.

    Raises:
        FileNotFoundError: there is too little of it.
    """
    found = [*topics(), *licenses_of_python(), *licenses_of_distributions(), *common_licenses()]
    documents = without_repetitions(found)
    parts: tuple[list[Document], list[Document]] = [], []
    for document in documents:
        parts[is_held_out(document.name)].append(document)
    if not all(parts):
        raise FileNotFoundError(
            f"of English prose only {len(documents)} documents are on this machine; needs "
            "pydoc_data/topics.py in the standard library, or licences in site-packages or "
            f"{COMMON_LICENSES}"
        )
    return Corpus("prose", *parts)


def topics() -> Iterator[Document]:
    """The chapters of the language reference, which are strings in a module; it is not run."""
    file = standard_library() / "pydoc_data" / "topics.py"
    if not file.is_file():
        return
    for statement in ast.parse(read_text(file)).body:
        if isinstance(statement, ast.Assign):
            for name, text in ast.literal_eval(statement.value).items():
                yield Document(f"topics/{name}", text)


def licenses_of_python() -> Iterator[Document]:
    """Python's own."""
    file = standard_library() / "LICENSE.txt"
    if file.is_file():
        yield Document("python/LICENSE", read_text(file))


def licenses_of_distributions() -> Iterator[Document]:
    """Those of the installed distributions, named without a version."""
    for root in sorted({Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}):
        for file in sorted(root.glob("*.dist-info/**/*")):
            if file.is_file() and LICENSE_NAME.match(file.name):
                directory, _, inside = file.relative_to(root).as_posix().partition("/")
                yield Document(f"distributions/{directory.split('-')[0]}/{inside}", read_text(file))


def common_licenses() -> Iterator[Document]:
    """Debian's."""
    if COMMON_LICENSES.is_dir():
        for file in sorted(COMMON_LICENSES.iterdir()):
            if file.is_file() and not file.is_symlink():
                yield Document(f"common-licenses/{file.name}", read_text(file))


def without_repetitions(documents: Iterable[Document]) -> list[Document]:
    """The documents without the paragraphs that an earlier, longer one has already.

    Licences repeat each other, and chapters of the reference contain one another. A paragraph goes
    where half of its runs of `SHINGLE` words have been seen; what is left of a document goes if it
    is short.
    """
    seen: set[tuple[str, ...]] = set()
    kept = []
    for document in sorted(documents, key=lambda document: (-len(document.text), document.name)):
        new = []
        for paragraph in re.split(r"\n\s*\n", document.text):
            runs = shingles(paragraph)
            if 2 * len(runs & seen) < max(1, len(runs)):
                new.append(paragraph)
            seen |= runs
        text = "\n\n".join(new)
        if len(text) >= SHORTEST:
            kept.append(Document(document.name, text))
    return kept


def shingles(text: str) -> set[tuple[str, ...]]:
    """Every run of `SHINGLE` words, whatever their case, spaces and punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + SHINGLE]) for start in range(len(words) - SHINGLE + 1)}


def is_held_out(name: str) -> bool:
    """Whether a document is for evaluation: by its name alone, the same on every machine."""
    return hashlib.sha256(name.encode()).digest()[0] < 256 * HELD_OUT_SHARE
