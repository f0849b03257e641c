"""Ways to break the kernels, and the tests that must notice: mutants.txt.

Each is an exact substitution in one file of csrc/. It has to apply exactly once: when kernels
change, these change with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_suffix(".txt")
ENTRY = re.compile(r"^\[(.+)\]\n(\S+) (.+)\n((?:-.*\n)+)((?:\+.*\n)+)", re.MULTILINE)


class StaleMutantError(ValueError):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """``tests`` are pytest's, from the repository's root; they run in order until one fails."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, csrc: Path) -> None:
        """Break the file; raises StaleMutantError."""
        path = csrc / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise StaleMutantError(
                f"mutant {self.name!r}: {self.file} has the text it replaces "
                f"{text.count(self.old)} times, but needs it once; adapt {SOURCE.name} to the "
                f"kernel:\n{self.old}"
            )
        path.write_text(text.replace(self.old, self.new))


def _parsed(text: str) -> tuple[Mutant, ...]:
    folders = ("proof/emulated", "operators", "proof/cpu")
    paths = [path for folder in folders for path in ROOT.glob(f"tests/{folder}/test_*.py")]
    files = {path.stem: str(path.relative_to(ROOT)) for path in paths}

    def tests(written: str) -> tuple[str, ...]:
        pairs = (each.split("::") for each in written.split())
        return tuple(f"{files[stem]}::{name}" for stem, name in pairs)

    def lines(signed: str) -> str:
        return "\n".join(line[2:] for line in signed.splitlines())

    return tuple(
        Mutant(name, file, lines(old), lines(new), tests(written))
        for name, file, written, old, new in ENTRY.findall(text)
    )


MUTANTS = _parsed(SOURCE.read_text(encoding="utf-8"))
