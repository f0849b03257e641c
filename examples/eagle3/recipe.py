"""What the recipes for drafters of one target have in common: options, texts, and the training."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rdk_cuda.files import write_whole

from . import __main__ as command


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


def train(given: argparse.Namespace, chosen: Sequence[str], *arguments: str) -> None:
    """The command, with these arguments and those that were given.

    `chosen` are the arguments that say which tokens are kept, if they are not all.
    """
    kept = ["--draft-size", str(given.kept), *chosen]
    own = ["--steps", str(given.steps), "--work", str(given.work), "--out", str(given.out)]
    command.main([*arguments, *([] if given.kept is None else kept), *own])


def _write(text: str, place: Path) -> None:
    """Write UTF-8."""
    place.write_text(text, encoding="utf-8")
