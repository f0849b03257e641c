"""The recipe of the EAGLE-3 drafters for Gemma 3 270M: `python -m examples.eagle3.gemma --help`.

One has all 262,144 tokens, one the first 32,768: those that the tokenizer merged first, so a
general vocabulary, as published drafters have. 68 % of the tokens of source code are among them.
Both learn from the source code, and the docstrings, of Python's standard library. Needs the extra
`[gemma]`.
"""

from __future__ import annotations

import sys

from examples.demo import gemma
from examples.demo.corpus import docstrings, read_text, training_files

from .recipe import recipe_options, train, write_texts

KEPT = 32768


def main() -> None:
    """The command."""
    given = recipe_options("gemma", __doc__, kept=KEPT, steps=650)
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    texts = [read_text(file) for file in training_files()]
    paths = write_texts(given.work, code=texts, prose=map(docstrings, texts))
    train(
        given,
        ("--lowest-ids",),
        *("--target", str(gemma.weights())),
        *("--dtype", str(gemma.fast_dtype()).removeprefix("torch.")),
        *("--text", str(paths["code"]), str(paths["prose"])),
        *("--context", "256", "--batch", "2"),
    )


if __name__ == "__main__":
    main()
