"""Text files as token ids."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import InputError


def encode(tokenizer: Any, text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def read_documents(
    tokenizer: Any, files: Iterable[Path], option: str = "--text"
) -> list[list[int]]:
    """The token ids of each file, one file a document; `option` named them.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, or is empty.
    """
    documents = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{option} {file}: byte {error.start} is not UTF-8; needs plain text in UTF-8"
            ) from error
        except OSError as error:
            raise InputError(f"{option} {file}: {error.strerror}; needs a readable file") from error
        if not text.strip():
            raise InputError(f"{option} {file}: is empty; leave it out, or give some text")
        documents.append(encode(tokenizer, text))
    return documents
