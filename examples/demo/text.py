"""Windows to measure on, prompts to continue and tokenizers, of the standard library's source."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import Window, cut_windows, encode, first_token

from .corpus import held_out_files, read_text

PROMPT = 128  # tokens


class Prompt(NamedTuple):
    """Text to continue, and where it is from."""

    source: str
    ids: list[int]


def byte_level_tokenizer(texts: Iterable[str], size: int, special: list[str]) -> Tokenizer:
    """Train byte-level BPE, as GPT-2 has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def windows_of(tokenizer: Any, files: Sequence[Path], positions: int, length: int) -> list[Window]:
    """About `positions` positions of the files, in windows of `length` tokens."""
    documents = [encode(tokenizer, read_text(file)) for file in files]
    try:
        return cut_windows(documents, positions, length, first=first_token(tokenizer))
    except ValueError as error:
        raise InputError(f"the demo's text: {error}") from error


def held_out_prompts(tokenizer: Any, length: int = PROMPT) -> list[Prompt]:
    """The `length` tokens up to the head of a function, three times in each held-out module.

    A token that begins every text comes first in them, too.
    """
    token = first_token(tokenizer)
    prompts, first = [], [] if token is None else [token]
    for file in held_out_files():
        text = read_text(file)
        heads = [match.end() for match in re.finditer(r"^ *def .*:$", text, re.MULTILINE)]
        quarters = [len(text) * part // 4 for part in (1, 2, 3)]
        ends = {next((end for end in heads if end > quarter), quarter) for quarter in quarters}
        for end in sorted(ends):
            ids = encode(tokenizer, text[:end])
            if len(ids) >= length:
                prompts.append(Prompt(file.name, [*first, *ids[len(first) - length :]]))
    return prompts
