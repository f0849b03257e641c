"""Any bytes in the tokens of a tokenizer, exactly (DESIGN section 2, "Different tokenizers").

This module imports neither tokenizers nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from .token_bytes import Spelling, token_bytes

_WORDS = re.compile(r"(?<=[!-~])(?= )")  # where one ends; DESIGN calls it a seam
_SEAM_INSIDE = re.compile(rb"[!-~] ")
_PROBES = ["A", "é", "東", "，", "  ", " \n", "\t"]  # what tokenizers have been seen to change
_CANONICAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}


class TextTokens:
    """A tokenizer that spells bytes as they are in the middle of a text: nothing added or changed.

    Unicode's canonical forms are left out of its normalizer, a space in front, too, and text that
    reads like a special token is text. Text that it would still change is spelled by the longest
    tokens that fit.

    Args:
        name: of the argument, for errors.
        tokenizer: a `tokenizers.Tokenizer`, or a fast tokenizer of transformers.

    Attributes:
        known, spellings: its tokens as `token_bytes` has them, and what each of them spells.
        start: the special tokens that it begins every text with.
        bytes, single_bytes: those that its tokens have, and those that it has a token for.
        reach: no token is so long, in bytes, and has a seam inside; 0 if none has.

    Raises:
        TypeError: another kind of tokenizer, or one whose tokens have no bytes by themselves.
        ValueError: one that changes text.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not all(hasattr(fast, method) for method in ("encode", "to_str", "from_str")):
            raise TypeError(
                f"{name}: got a {type(tokenizer).__name__}; needs what tokenises text, a "
                "tokenizers.Tokenizer or a fast tokenizer of transformers"
            )
        self.known = token_bytes(tokenizer)
        self.spellings: tuple[Spelling, ...] = self.known.spellings
        self._ids = {spelling: ids[0] for spelling, ids in self.known.ids().items()}
        ordinary = [spelling for spelling in self._ids if isinstance(spelling, bytes)]
        self.single_bytes = {spelling[0] for spelling in ordinary if len(spelling) == 1}
        self.bytes = set(b"".join(ordinary))
        self._absent = bytes(set(range(256)) - self.bytes)
        self._longest = max(map(len, ordinary), default=0)
        self._fast = _within_a_text(fast)
        self.start = _start(fast)
        plain = [
            self.spelled(_attended(fast.encode(text, add_special_tokens=False)))
            for text in ("x", " x")
        ]
        self._prefix, self._prefix_always = plain[0] == b" x", plain[1] == b"  x"
        self.reach = max(map(len, filter(_SEAM_INSIDE.search, ordinary)), default=0)
        for probe in _PROBES:
            text = f"x{probe}x"
            spelled = self.spelled(self._fast.encode(text, add_special_tokens=False).ids)
            if spelled != text.encode():
                raise ValueError(
                    f"{name}: it makes {(spelled or b'').decode(errors='replace')!r} of {text!r}; "
                    "needs a tokenizer that keeps text as it is and has a token for every byte "
                    "(use a drafter with such a tokenizer, or train one for the target's)"
                )

    def without_prefix(self, beginning: bytes) -> bytes:
        """Strip the space that its tokenizer put in front of a text."""
        return beginning[1:] if self._prefix and beginning[:1] == b" " else beginning

    def with_prefix(self, beginning: bytes) -> bytes:
        """Put the space in front of a text that its tokenizer would."""
        add = self._prefix and (self._prefix_always or beginning[:1] != b" ")
        return b" " + beginning if add else beginning

    def readable(self, text: bytes) -> bytes:
        """Strip the bytes that occur in none of its tokens."""
        return text.translate(None, self._absent)

    def spelled(self, ids: Iterable[int]) -> bytes | None:
        """Spell ordinary tokens; None if others are among them."""
        spellings = [self.spellings[id] for id in ids]
        ordinary = [each for each in spellings if isinstance(each, bytes)]
        return b"".join(ordinary) if len(ordinary) == len(spellings) else None

    def encode(self, text: bytes) -> list[int]:
        """Encode bytes; what is no UTF-8 byte by byte, or in tokens that fit.

        Bytes that it has not are left out.
        """
        ids, text = list[int](), self.readable(text)
        while text:
            try:
                good, bad, text = text.decode(), b"", b""
            except UnicodeDecodeError as error:
                good, bad = text[: error.start].decode(), text[error.start : error.end]
                text = text[error.end :]
            ids += self._encoded(good) + self._fitted(bad)
        return ids

    def _encoded(self, text: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        if self.spelled(ids) == text.encode():
            return ids
        words = _WORDS.split(text)
        if len(words) == 1:
            return self._fitted(text.encode())
        return [id for word in words for id in self._encoded(word)]

    def _fitted(self, text: bytes) -> list[int]:
        """The longest token that it begins with, and so on."""
        ids, at = [], 0
        while at < len(text):
            for length in range(min(self._longest, len(text) - at), 0, -1):
                id = self._ids.get(text[at : at + length])
                if id is not None:
                    break
            else:
                raise ValueError(
                    f"TextTokens.encode: no token for byte {text[at]:#04x}; needs one for each"
                )
            ids.append(id)
            at += length
        return ids


def incomplete(text: bytes) -> int:
    """Count the bytes at the end that begin a character.

    Example:
        >>> incomplete("é東".encode()[:-1]), incomplete(b"e")
        (2, 0)
    """
    for count, byte in enumerate(reversed(text[-3:]), start=1):
        if byte >= 0xC0:
            return count if count < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            break
    return 0


def _within_a_text(fast: Any) -> Any:
    """A copy that adds nothing in front, knows no special tokens, and keeps canonical forms."""
    state = json.loads(fast.to_str())
    for part in ("truncation", "padding", "post_processor"):
        state[part] = None
    for part in ("normalizer", "pre_tokenizer"):
        state[part] = _kept(state[part])
    copy = type(fast).from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


def _kept(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A step of a tokenizer, as the library describes it, without what belongs to a beginning."""
    if step is None or step["type"] in _CANONICAL_FORMS | {"Prepend"}:
        return None
    for several in ("normalizers", "pretokenizers"):
        if several in step:
            parts = [kept for part in step[several] if (kept := _kept(part)) is not None]
            return {**step, several: parts} if parts else None
    without = {"prepend_scheme": "never", "add_prefix_space": False}
    return step | {option: off for option, off in without.items() if option in step}


def _start(fast: Any) -> list[int]:
    with_them, alone = (
        _attended(fast.encode("x", add_special_tokens=add)) for add in (True, False)
    )
    at = next(at for at in range(len(with_them)) if with_them[at:][: len(alone)] == alone)
    return with_them[:at]


def _attended(encoding: Any) -> list[int]:
    """Its tokens; padding, which a tokenizer of transformers may still have set, is none."""
    return [id for id, real in zip(encoding.ids, encoding.attention_mask, strict=True) if real]
