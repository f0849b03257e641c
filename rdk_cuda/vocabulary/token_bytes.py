"""The bytes that a tokenizer's decoder makes of each token.

By these, tokens of different tokenizers can be compared: a byte-level BPE writes bytes in an
alphabet of its own (GPT-2), SentencePiece writes ▁ for a space and has tokens like `<0x0A>`. This
module imports neither tokenizers nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Spelling: TypeAlias = bytes | str | None
"""The bytes of an ordinary token, the name of a special one, None for an id without either."""

_MOST_TOKENS = 1 << 24  # of a mapping; the largest vocabularies have 2^18
_ROLES = {
    "turn_end": ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>"),
    "eos_token": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "bos_token": ("<s>", "<bos>", "<|begin_of_text|>"),
    "pad_token": ("<pad>", "<|pad|>"),
}  # a tokenizer of transformers says which has three of them; for the rest, names in wide use
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """The tokens of a tokenizer, as `token_bytes` finds them.

    Attributes:
        spellings: by id.
        byte_fallbacks: ids of tokens like `<0x0A>`, which spell what no ordinary token does.
        roles: the special tokens of each role, as `eos_token`, the likeliest first.
    """

    spellings: tuple[Spelling, ...]
    byte_fallbacks: frozenset[int] = frozenset()
    roles: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    def ids(self) -> dict[bytes | str, list[int]]:
        """List the tokens of each spelling: ordinary ones before byte fallbacks, then by id."""
        found: dict[bytes | str, list[int]] = {}
        for id in sorted(range(len(self.spellings)), key=lambda id: id in self.byte_fallbacks):
            spelling = self.spellings[id]
            if spelling is not None:
                found.setdefault(spelling, []).append(id)
        return found

    def within(self, size: int | None) -> TokenBytes:
        """Leave out special tokens that a model of this width does not predict."""
        if size is None or size < 1:  # which is refused, by the number of tokens
            return self
        if any(isinstance(each, bytes) for each in self.spellings[size:]):
            return self
        roles = {role: tuple(id for id in ids if id < size) for role, ids in self.roles.items()}
        return TokenBytes(self.spellings[:size], self.byte_fallbacks, roles)


def matching_ids(drafter: TokenBytes, target: TokenBytes) -> list[int]:
    """Match each drafter token to a target id, -1 where there is none.

    Tokens match if they have the same bytes, or if both are special and have the same name or, if
    neither has a partner by name, the same role. If several tokens have the same bytes, they are
    paired in the order of `TokenBytes.ids`, and drafter tokens that are left over get -1. So no
    target id is used twice, and two equal tokenizers match one to one.

    Example:
        >>> drafter = TokenBytes((b"the", b" a", "<s>", b"the", None))
        >>> target = TokenBytes(("<s>", b"the", b"<s>", b"b"))
        >>> matching_ids(drafter, target)
        [1, -1, 0, -1, -1]
    """
    known = target.ids()
    matched = [-1] * len(drafter.spellings)
    for spelling, ids in drafter.ids().items():
        for draft_id, target_id in zip(ids, known.get(spelling, ()), strict=False):
            matched[draft_id] = target_id
    used = {id for id in matched if id >= 0}
    for role, candidates in drafter.roles.items():
        ours = [id for id in candidates if matched[id] < 0]
        theirs = [id for id in target.roles.get(role, ()) if id not in used]
        if ours and theirs:
            matched[ours[0]] = theirs[0]
            used.add(theirs[0])
    return matched


def longest_beginning(spelling: Spelling, ids: Mapping[bytes | str, list[int]]) -> int:
    """Find the longest token, of `TokenBytes.ids`, that a text may begin with; -1 for none."""
    if not isinstance(spelling, bytes):
        return -1
    lengths = range(len(spelling), 0, -1)
    return next((ids[spelling[:n]][0] for n in lengths if spelling[:n] in ids), -1)


def token_bytes(tokenizer: Any) -> TokenBytes:
    """Find the bytes of each token, as the tokenizer's decoder has them within a text.

    A SentencePiece token keeps its leading space, which a decoder drops at the start of a text.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; a fast tokenizer of transformers; or a mapping to ids
            from bytes, and from the names of special tokens (the two tables of tiktoken in one).

    Raises:
        TypeError: another object, or a decoder that does not tell a token's bytes by itself.
        ValueError: a mapping whose ids are not distinct, or no ids.

    Example:
        >>> token_bytes({b"the": 0, "<s>": 2}).spellings
        (b'the', None, '<s>')
    """
    if isinstance(tokenizer, TokenBytes):
        return tokenizer
    if isinstance(tokenizer, Mapping):
        return _with_roles(TokenBytes(_by_id(_checked_mapping(tokenizer))), tokenizer)
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not all(hasattr(fast, name) for name in ("decoder", "get_added_tokens_decoder")):
        raise TypeError(
            f"token_bytes: got a {type(tokenizer).__name__}; needs a tokenizers.Tokenizer, a fast "
            "tokenizer of transformers, or a mapping from bytes to ids"
        )
    special = {id for id, token in fast.get_added_tokens_decoder().items() if token.special}
    decode, known = _decoder(fast.decoder), fast.get_vocab(with_added_tokens=True)
    spellings = _by_id(
        (token if id in special else decode(token), id) for token, id in known.items()
    )
    byte_fallbacks = (
        id
        for token, id in known.items()
        if _BYTE_TOKEN.fullmatch(token) and spellings[id] == bytes.fromhex(token[3:5])
    )
    return _with_roles(TokenBytes(spellings, frozenset(byte_fallbacks)), tokenizer)


def _with_roles(known: TokenBytes, tokenizer: Any) -> TokenBytes:
    special = {name: id for id, name in enumerate(known.spellings) if isinstance(name, str)}
    roles = {}
    for role, names in _ROLES.items():
        own = dict.fromkeys((getattr(tokenizer, role, None), *names))
        roles[role] = tuple(special[name] for name in own if name in special)
    return replace(known, roles=roles)


def _by_id(tokens: Iterable[tuple[bytes | str, int]]) -> tuple[Spelling, ...]:
    by_id = {id: spelling or None for spelling, id in tokens}
    return tuple(by_id.get(id) for id in range(max(by_id, default=-1) + 1))


def _checked_mapping(tokens: Mapping[Any, Any]) -> list[tuple[bytes | str, int]]:
    if not any(isinstance(token, bytes) for token in tokens):
        raise TypeError(
            "token_bytes: got a mapping without bytes among its keys, so how it writes them is not "
            "known; needs the tokenizer itself, or a mapping from bytes to ids"
        )
    for token, id in tokens.items():
        if not isinstance(token, (bytes, str)) or type(id) is not int or not 0 <= id < _MOST_TOKENS:
            raise ValueError(
                f"token_bytes: maps {token!r:.40} to {id!r:.40}; needs bytes, or a special token's "
                f"name, to an id from 0 to {_MOST_TOKENS - 1}"
            )
    if len(set(tokens.values())) < len(tokens):
        raise ValueError("token_bytes: maps two tokens to one id; needs an id of its own for each")
    return list(tokens.items())


# Decoders, as the tokenizers library describes them.


def _decoder(decoder: Any) -> Callable[[str], bytes]:
    if decoder is None:
        raise TypeError(
            "token_bytes: the tokenizer has no decoder; needs one, or a mapping from bytes to ids"
        )

    steps = _steps(json.loads(decoder.__getstate__()))

    def decode(token: str) -> bytes:
        spelled: bytes | str = token
        for step in steps:
            if isinstance(spelled, str):
                spelled = step(spelled)
        return spelled.encode() if isinstance(spelled, str) else spelled

    return decode


def _steps(state: dict[str, Any]) -> list[Callable[[str], bytes | str]]:
    kind = state["type"]
    if kind == "Sequence":
        parts = state["decoders"]
        whole = next((at for at, part in enumerate(parts) if part["type"] == "Fuse"), len(parts))
        # Stripping behind "Fuse" is of the beginning or the end of a whole text.
        parts = [
            p for at, p in enumerate(parts) if at < whole or p["type"] not in ("Fuse", "Strip")
        ]
        return [step for part in parts for step in _steps(part)]
    if kind == "ByteLevel":
        return [_from_alphabet]
    if kind == "ByteFallback":
        return [_from_byte_token]
    if kind == "Metaspace":
        return [_replacing(state["replacement"], " ")]
    if kind == "Replace" and "String" in state["pattern"]:
        return [_replacing(state["pattern"]["String"], state["content"])]
    if kind == "Fuse":
        return []
    raise TypeError(
        f"token_bytes: the tokenizer's decoder has a step {kind}, which does not tell a token's "
        "bytes by itself; needs ByteLevel, ByteFallback, Metaspace or Replace, or a mapping from "
        "bytes to ids"
    )


def _replacing(pattern: str, content: str) -> Callable[[str], str]:
    return lambda token: token.replace(pattern, content)


def _from_byte_token(token: str) -> bytes | str:
    return bytes.fromhex(token[3:5]) if _BYTE_TOKEN.fullmatch(token) else token


def _from_alphabet(token: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, token))
    except KeyError:
        return token.encode()


def _alphabet() -> dict[str, int]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + at): byte for at, byte in enumerate(others)
    }


_ALPHABET = _alphabet()
