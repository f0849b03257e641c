"""Windows to measure on and prompts to continue, cut from the standard library's source."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .corpus import held_out_files, read_text
from .errors import InputError

WINDOW = 384  # tokens; what the demo's models were trained on
PROMPT = 128  # tokens


class Window(NamedTuple):
    """Consecutive tokens of one document, which windows of the same document share."""

    document: int
    ids: list[int]

    @property
    def contexts(self) -> list[list[int]]:
        """What stands before the prediction at each position."""
        return [self.ids[:length] for length in range(1, len(self.ids) + 1)]


class Prompt(NamedTuple):
    """Text to continue, and where it is from."""

    source: str
    ids: list[int]


def encode(tokenizer: Any, text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def cut_windows(
    tokenizer: Any, files: Sequence[Path], positions: int, length: int = WINDOW
) -> list[Window]:
    """About `positions` positions in windows of `length` tokens, spread over files and in each.

    Windows of one file do not overlap; files shorter than a window have none.
    """
    count = -(-positions // length)
    documents = min(count, len(files))
    each = -(-count // documents)
    windows = []
    for document in range(documents):
        file = files[document * len(files) // documents]
        ids = encode(tokenizer, read_text(file))
        here = min(each, len(ids) // length)
        for place in range(here):
            start = (2 * place + 1) * (len(ids) - here * length) // (2 * here) + place * length
            windows.append(Window(document, ids[start : start + length]))
    if not windows:
        raise InputError(f"no document of the text has {length} tokens with this tokenizer")
    return windows


def held_out_prompts(tokenizer: Any, length: int = PROMPT) -> list[Prompt]:
    """The `length` tokens up to the head of a function, three times in each held-out module."""
    prompts = []
    for file in held_out_files():
        text = read_text(file)
        heads = [match.end() for match in re.finditer(r"^ *def .*:$", text, re.MULTILINE)]
        quarters = [len(text) * part // 4 for part in (1, 2, 3)]
        ends = {next((end for end in heads if end > quarter), quarter) for quarter in quarters}
        for end in sorted(ends):
            ids = encode(tokenizer, text[:end])[-length:]
            if len(ids) == length:
                prompts.append(Prompt(file.name, ids))
    return prompts
