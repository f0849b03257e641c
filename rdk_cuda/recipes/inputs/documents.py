"""Text files as token ids: what is calibrated on, and what is held out to measure on."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError

WINDOW = 512  # tokens that are read at once, if the models and most documents have them
HELD_OUT_POSITIONS = 8192  # to measure at, at least
EVERY = 5  # if no text is held out by name, every fifth document is


class Window(NamedTuple):
    """Consecutive tokens of one document, which windows of the same document share."""

    document: int
    ids: list[int]

    @property
    def contexts(self) -> list[list[int]]:
        """The window up to each of its tokens."""
        return [self.ids[:length] for length in range(1, len(self.ids) + 1)]


def cut_windows(
    documents: Sequence[Sequence[int]], positions: int, length: int, *, first: int | None = None
) -> list[Window]:
    """About `positions` positions in windows of `length` tokens, spread over documents.

    Windows of one document do not overlap; documents shorter than a window have none.

    Args:
        first: the token that begins every text of the models, if there is one. A window from the
            middle of a document gets it in front, in place of its last token: Gemma 3 270M loses
            0.8 nats a token without it.

    Example:
        >>> cut_windows([[1, 2, 3, 4], [5], [6, 7]], positions=4, length=2)
        [Window(document=0, ids=[2, 3]), Window(document=2, ids=[6, 7])]
    """
    if positions < 1 or length < 1:
        raise ValueError(f"cut_windows: positions is {positions} and length {length}; needs both")
    long_enough = [place for place, ids in enumerate(documents) if len(ids) >= length]
    if not long_enough:
        longest = max(map(len, documents), default=0)
        raise ValueError(
            f"cut_windows: the longest of {len(documents)} documents has {longest} tokens; needs "
            f"one of {length}, a window"
        )
    count = -(-positions // length)
    chosen = min(count, len(long_enough))
    windows = []
    for turn in range(chosen):
        document = long_enough[turn * len(long_enough) // chosen]
        ids = documents[document]
        share = count * (turn + 1) // chosen - count * turn // chosen
        here = min(share, len(ids) // length)
        for place in range(here):
            start = (2 * place + 1) * (len(ids) - here * length) // (2 * here) + place * length
            own = list(ids[start : start + length])
            if first is not None and own[0] != first:
                own = [first, *own[:-1]]
            windows.append(Window(document, own))
    return windows


class Document(NamedTuple):
    """A text file, by its name without folders; `ids` are the tokens of its text."""

    name: str
    sha256: str
    ids: list[int]

    @property
    def source(self) -> dict[str, str]:
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True)
class Text:
    """Documents, how many tokens are read at once, and the token that begins every text.

    Attributes:
        measured: at how many positions, if it is held out. None: in every document, at least.
    """

    documents: Sequence[Document]
    length: int
    first: int | None = None
    measured: int | None = None

    @property
    def ids(self) -> list[list[int]]:
        return [document.ids for document in self.documents]

    @property
    def too_short(self) -> list[str]:
        return [document.name for document in self.documents if len(document.ids) < self.length]

    @property
    def sources(self) -> list[dict[str, str]]:
        return [document.source for document in self.documents]

    def held_out_windows(self) -> list[Window]:
        long_enough = len(self.documents) - len(self.too_short)
        least = max(HELD_OUT_POSITIONS, self.length * long_enough)
        return self.windows(self.measured or least)

    def windows(self, positions: int) -> list[Window]:
        return cut_windows(self.ids, positions, self.length, first=self.first)


def encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def first_token(tokenizer: Any) -> int | None:
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
    """Read the text to calibrate and to measure on; no document is in both."""
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

    At most WINDOW and `context`, and few enough that documents with nine tenths of the text are
    long enough.
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
