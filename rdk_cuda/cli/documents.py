"""Text files as token ids."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from .errors import InputError

WINDOW = 512  # tokens that are read at once, if the models and most documents have them
HELD_OUT_POSITIONS = 8192  # to measure at, at least


class Document(NamedTuple):
    """A text file.

    Attributes:
        name: of the file, without its folder.
        sha256: of its bytes, in hexadecimal.
        ids: the tokens of its text.
    """

    name: str
    sha256: str
    ids: list[int]


def encode(tokenizer: Any, text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def read_documents(tokenizer: Any, files: Iterable[Path], option: str = "--text") -> list[Document]:
    """Each file, one file a document; `option` named them.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, or is empty.
    """
    documents = []
    for file in files:
        try:
            content = file.read_bytes()
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{option} {file}: byte {error.start} is not UTF-8; needs plain text in UTF-8"
            ) from error
        except OSError as error:
            raise InputError(f"{option} {file}: {error.strerror}; needs a readable file") from error
        if not text.strip():
            raise InputError(f"{option} {file}: is empty; leave it out, or give some text")
        digest = hashlib.sha256(content).hexdigest()
        documents.append(Document(file.name, digest, encode(tokenizer, text)))
    return documents


def positions_of_all(documents: Sequence[Document], length: int, least: int) -> int:
    """At least `least` positions, and a window for each document that has `length` tokens."""
    return max(least, length * sum(len(document.ids) >= length for document in documents))


def window_length(
    documents: Sequence[Document], context: int, draft_length: int, option: str = "--text"
) -> int:
    """How many tokens are read at once; documents that are shorter are left out.

    At most WINDOW, what the models can read, and so many that nine tenths of the text are in
    documents that are long enough.

    Args:
        context: how many tokens the models can read.

    Raises:
        InputError: too few for a pass of the target over `draft_length` drafts.
    """
    lengths = sorted((len(document.ids) for document in documents), reverse=True)
    needed, limit = draft_length + 2, min(WINDOW, context)
    if min(limit, lengths[0]) < needed:
        longest = f"the longest document has {lengths[0]} tokens"
        most = f"at most {limit} tokens are read at once"
        raise InputError(
            f"{option}: {longest if lengths[0] < limit else most}; needs at least {needed} with "
            f"--draft-length {draft_length}"
        )
    reached = accumulate(lengths)
    typical = next(
        length
        for length, tokens in zip(lengths, reached, strict=True)
        if 10 * tokens >= 9 * sum(lengths)
    )
    return min(limit, max(typical, needed))
