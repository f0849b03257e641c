"""Text files as token ids: what is calibrated on, and what is held out to measure on."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ..calibration.reading import Window, cut_windows
from .errors import InputError

WINDOW = 512  # tokens that are read at once, if the models and most documents have them
HELD_OUT_POSITIONS = 8192  # to measure at, at least
EVERY = 5  # if no text is held out by name, every fifth document is


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

    @property
    def source(self) -> dict[str, str]:
        """Which file it was, for results."""
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True)
class Text:
    """Documents, and how many of their tokens are read at once.

    Attributes:
        first: the token that begins every text, if the tokenizer puts one there.
    """

    documents: Sequence[Document]
    length: int
    first: int | None = None

    @property
    def ids(self) -> list[list[int]]:
        """The token ids of each document."""
        return [document.ids for document in self.documents]

    @property
    def too_short(self) -> list[str]:
        """Names of documents that are shorter than what is read at once."""
        return [document.name for document in self.documents if len(document.ids) < self.length]

    @property
    def sources(self) -> list[dict[str, str]]:
        """Which files they were."""
        return [document.source for document in self.documents]

    def held_out_windows(self, positions: int | None = None) -> list[Window]:
        """To measure in: by default `HELD_OUT_POSITIONS`, or a window of every document."""
        long_enough = len(self.documents) - len(self.too_short)
        least = max(HELD_OUT_POSITIONS, self.length * long_enough)
        return self.windows(positions or least)

    def windows(self, positions: int) -> list[Window]:
        """About so many positions, spread over the documents."""
        return cut_windows(self.ids, positions, self.length, first=self.first)


def encode(tokenizer: Any, text: str) -> list[int]:
    """A text's token ids."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def first_token(tokenizer: Any) -> int | None:
    """The token that a tokenizer begins every text with, or None."""
    ids = encode(tokenizer, "")
    return ids[0] if ids and ids[0] == tokenizer.bos_token_id else None


def read_documents(tokenizer: Any, files: Iterable[Path], option: str = "--text") -> list[Document]:
    """Each file as a document, but no text twice; `option` named them."""
    documents: dict[str, Document] = {}
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
        name = os.fsencode(file.name).decode("utf-8", "replace")  # it goes into JSON
        if digest not in documents:
            documents[digest] = Document(name, digest, encode(tokenizer, text))
    return list(documents.values())


def calibration_and_held_out(
    tokenizer: Any,
    files: Iterable[Path],
    held_out_files: Sequence[Path],
    context: int,
    draft_length: int,
) -> tuple[Text, Text]:
    """What is calibrated on, and what is measured on; no document is in both.

    Args:
        held_out_files: if there are none, every fifth of the files is held out.
        context: how many tokens the models can read.
    """
    calibration: Sequence[Document] = read_documents(tokenizer, files)
    option = "--held-out" if held_out_files else "--text"
    if held_out_files:
        held_out: Sequence[Document] = read_documents(tokenizer, held_out_files, option)
        known = {document.sha256 for document in calibration}
        for document in held_out:
            if document.sha256 in known:
                raise InputError(
                    f"{option} {document.name}: is held out to measure on, and its content is also "
                    "calibrated on; give each text once"
                )
    else:
        calibration, held_out = hold_out(calibration)
    first = first_token(tokenizer)
    return (
        Text(calibration, window_length(calibration, context, draft_length), first),
        Text(held_out, window_length(held_out, context, draft_length, option), first),
    )


def hold_out(documents: Sequence[Document]) -> tuple[list[Document], Sequence[Document]]:
    """The documents without every fifth, and those; of fewer than five the last is held out."""
    if len(documents) < 2:
        raise InputError(
            "--text is one document, so nothing can be held out of it to measure on; give more "
            "files, or some with --held-out"
        )
    every = min(EVERY, len(documents))
    calibration = [document for place, document in enumerate(documents, 1) if place % every]
    return calibration, documents[every - 1 :: every]


def window_length(
    documents: Sequence[Document], context: int, draft_length: int, option: str = "--text"
) -> int:
    """How many tokens are read at once; shorter documents are left out.

    At most WINDOW and what the models can read, and few enough that documents with nine tenths of
    the text are long enough.

    Args:
        context: how many tokens the models can read.
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
