"""EAGLE-3 drafters for the demo's target: `python -m examples.eagle3.demo --help` is their recipe.

One has all 16,384 tokens. One, which the repository ships next to the demo's models, has the 2,048
most likely ones of other text, as published drafters do, and rows of its own for them, as those
that calibration cannot take from the target. Both learn from the source code of Python's standard
library; the kept tokens are chosen on its docstrings.
"""

from __future__ import annotations

from examples.demo.corpus import docstrings, read_text, training_files
from examples.demo.shipped import SHIPPED

from .recipe import recipe_options, train, write_texts

KEPT = 2048


def main() -> None:
    """The command."""
    given = recipe_options("demo", __doc__, kept=KEPT, steps=700)
    texts = [read_text(file) for file in training_files()]
    paths = write_texts(given.work, code=texts, other=map(docstrings, texts))
    train(
        given,
        ("--vocabulary-text", str(paths["other"])),
        *("--target", str(SHIPPED / "target"), "--text", str(paths["code"])),
        "--own-head",
    )


if __name__ == "__main__":
    main()
