"""Tokens of two tokenizers match by the bytes that they stand for: all of them and no others."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.vocabulary.token_bytes import (
    Spelling,
    TokenBytes,
    longest_beginning,
    matching_ids,
    token_bytes,
)

tokenizers = pytest.importorskip("tokenizers")

from transformers import PreTrainedTokenizerFast  # noqa: E402

from tests.trained_tokenizers import DEMO, ODD, TOKENIZERS, byte_level  # noqa: E402

NAMES = sorted(TOKENIZERS)
PAIRS = [(a, b) for a in NAMES for b in NAMES if a != b]
spellings = st.one_of(
    st.none(), st.sampled_from(["<s>", "a"]), st.binary(min_size=1, max_size=2)
) | st.sampled_from([b"a", b"b", b"ab", b"<s>"])


@cache
def bytes_of(name: str) -> TokenBytes:
    return token_bytes(TOKENIZERS[name]())


def spell(tokens: TokenBytes, ids: list[int]) -> bytes:
    parts = [tokens.spellings[id] for id in ids]
    assert all(isinstance(part, bytes) for part in parts)
    return b"".join(part for part in parts if isinstance(part, bytes))


# What a token stands for.


@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_bytes_that_its_tokenizer_decodes(name: str) -> None:
    """Every token, between two others, since decoders treat the ends of a text in their own way."""
    tokenizer = TOKENIZERS[name]()
    tokens = bytes_of(name)
    x = tokenizer.token_to_id("x")
    assert len(tokens.spellings) == max(tokenizer.get_vocab().values()) + 1
    seen = 0
    for id, spelling in enumerate(tokens.spellings):
        text = tokenizer.decode([x, id, x], skip_special_tokens=False)
        if isinstance(spelling, str):
            assert text == f"x{spelling}x"
        elif "\ufffd" not in text:  # a part of a character, which no decoder can show
            assert text == f"x{spelling.decode()}x"
            seen += 1
    assert seen > 0.8 * len(tokens.spellings)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, derandomize=True, max_examples=100)
@given(text=st.text() | st.just(ODD))
def test_the_tokens_of_a_text_have_its_bytes(name: str, text: str) -> None:
    """Also parts of characters: of the rest of a text, the bytes are those that are not theirs."""
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(f"x{text}x", add_special_tokens=False).ids
    spelled = spell(bytes_of(name), ids).decode()
    assert tokenizer.decode(ids) == spelled.removeprefix(" ")
    if name in ("demo", "byte-level"):  # SentencePiece writes the text's own ▁ as a space
        assert spelled == f"x{text}x"


def test_special_tokens_have_names_and_fallbacks_are_marked() -> None:
    tokens = bytes_of("SentencePiece")
    assert tokens.spellings[:3] == ("<unk>", "<s>", "<|endoftext|>")
    assert tokens.spellings[3:259] == tuple(bytes([byte]) for byte in range(256))
    assert tokens.byte_fallbacks == frozenset(range(3, 259))
    assert bytes_of("demo").byte_fallbacks == frozenset()


@pytest.mark.parametrize("name", ["demo", "SentencePiece"])
def test_fast_tokenizers_of_transformers_are_the_same(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[name](), eos_token="<|endoftext|>"
    )
    assert token_bytes(fast) == bytes_of(name)
    if name == "demo":
        loaded = transformers.AutoTokenizer.from_pretrained(DEMO.parent, local_files_only=True)
        assert token_bytes(loaded) == bytes_of("demo")


def test_a_token_that_transformers_calls_special_is_special() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "stop": 1}, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    assert token_bytes(tokenizer).spellings == (b"a", b"stop")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="stop")
    assert token_bytes(fast).spellings == (b"a", "stop")


def test_a_mapping_has_bytes_and_names_of_special_tokens() -> None:
    """tiktoken's ranks and special tokens."""
    tokens = token_bytes({b"a": 2, b" b": 0, "<|end|>": 5, b"": 1})
    assert tokens == TokenBytes((b" b", None, b"a", None, None, "<|end|>"))
    assert token_bytes(tokens) is tokens


# Which match.


def brute_force(drafter: TokenBytes, target: TokenBytes) -> int:
    """How many pairs of equal tokens can be made, each token in one of them."""
    counts = [
        Counter(spelling for spelling in tokens.spellings if spelling is not None)
        for tokens in (drafter, target)
    ]
    return sum((counts[0] & counts[1]).values())


def assert_all_that_match(drafter: TokenBytes, target: TokenBytes, ids: list[int]) -> None:
    pairs = [(draft_id, id) for draft_id, id in enumerate(ids) if id >= 0]
    for draft_id, id in pairs:
        assert drafter.spellings[draft_id] == target.spellings[id]
        assert drafter.spellings[draft_id] is not None
    assert len({id for _, id in pairs}) == len(pairs) == brute_force(drafter, target)


@pytest.mark.parametrize(("drafter", "target"), PAIRS)
def test_real_tokenizers_match_in_all_tokens_with_equal_bytes(drafter: str, target: str) -> None:
    ours, theirs = bytes_of(drafter), bytes_of(target)
    vocabulary = Vocabulary.between(TOKENIZERS[drafter](), TOKENIZERS[target]())
    assert vocabulary.draft_size == len(ours.spellings)
    assert vocabulary.target_size == len(theirs.spellings)
    assert_all_that_match(ours, theirs, vocabulary.draft_ids.tolist())
    assert vocabulary.kept.numel() > 500
    assert bool((vocabulary.draft_ids < 0).any()), "the tokenizers are no different"


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(spellings, max_size=8), st.lists(spellings, max_size=8), st.data())
def test_any_two_match_in_all_tokens_with_equal_bytes(
    ours: list[Spelling], theirs: list[Spelling], data: st.DataObject
) -> None:
    fallbacks = [data.draw(st.sets(st.integers(0, 7))) for _ in range(2)]
    drafter = TokenBytes(tuple(ours), frozenset(fallbacks[0]))
    target = TokenBytes(tuple(theirs), frozenset(fallbacks[1]))
    assert_all_that_match(drafter, target, matching_ids(drafter, target))


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_matches_itself_one_to_one(name: str) -> None:
    """Also where a byte fallback has the bytes of an ordinary token."""
    tokenizer = TOKENIZERS[name]()
    size = len(bytes_of(name).spellings)
    assert Vocabulary.between(tokenizer, tokenizer) == Vocabulary.identity(size)


def test_ordinary_tokens_match_before_byte_fallbacks_and_low_ids_before_high() -> None:
    byte_level = TokenBytes((b"b", b"A"))
    fallback = TokenBytes((b"A", b"A", b"b"), frozenset({0}))
    assert matching_ids(byte_level, fallback) == [2, 1]
    assert matching_ids(fallback, byte_level) == [-1, 1, 0]
    twice = TokenBytes((b"A", b"A", b"A"))
    assert matching_ids(twice, byte_level) == [1, -1, -1]
    assert matching_ids(byte_level, twice) == [-1, 0]


def test_special_tokens_match_special_ones_of_the_same_name_only() -> None:
    drafter = TokenBytes(("<s>", "</s>", b"<pad>"))
    target = TokenBytes((b"</s>", "<pad>", "<s>"))
    assert matching_ids(drafter, target) == [2, -1, -1]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.binary(max_size=6), st.lists(spellings, max_size=12))
def test_the_longest_beginning_is_what_brute_force_finds(
    text: bytes, known: list[Spelling]
) -> None:
    found = longest_beginning(text, TokenBytes(tuple(known)).ids())
    expected = {part for part in known if isinstance(part, bytes) and text.startswith(part)}
    assert (known[found] if found >= 0 else None) == max(expected, key=len, default=None)
    assert longest_beginning("<s>", TokenBytes(("<s>",)).ids()) == -1


# Refusals.


def with_decoder(decoder: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


decoders = tokenizers.decoders


NO_TOKENIZERS = [
    (None, "got a NoneType; needs a tokenizers.Tokenizer"),
    ("gpt2", "got a str; needs a tokenizers.Tokenizer"),
    ({"a": 0, "b": 1}, "a mapping without bytes among its keys"),
    ({}, "a mapping without bytes among its keys"),
    (with_decoder(None), "has no decoder"),
    (with_decoder(decoders.WordPiece()), "has a step WordPiece"),
    (with_decoder(decoders.BPEDecoder()), "has a step BPEDecoder"),
    (with_decoder(decoders.Sequence([decoders.Strip(" ", 1, 0)])), "has a step Strip"),
    (with_decoder(decoders.Replace(tokenizers.Regex("a+"), "b")), "has a step Replace"),
]
NO_IDS = [
    ({b"a": 0, b"b": 0}, "maps two tokens to one id"),
    ({b"a": -1}, r"maps b'a' to -1; needs .* an id from 0"),
    ({b"a": 2**40}, "to 1099511627776"),
    ({b"a": 1.0}, "to 1.0"),
    ({b"a": True}, "to True"),
    ({b"a": 0, 7: 1}, "maps 7 to 1; needs bytes"),
]


@pytest.mark.parametrize(
    ("tokenizer", "error", "message"),
    [(given, TypeError, message) for given, message in NO_TOKENIZERS]
    + [(given, ValueError, message) for given, message in NO_IDS],
)
def test_what_does_not_tell_its_bytes_or_ids_is_refused(
    tokenizer: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        token_bytes(tokenizer)


def test_logits_may_be_wider_than_the_tokenizer_but_not_narrower() -> None:
    one, two, three = {b"b": 0}, {b"a": 0, b"b": 1}, {b"c": 2}
    wider = Vocabulary.between(two, one, draft_size=4, target_size=3)
    assert wider == Vocabulary([-1, 0, -1, -1], 3)
    with pytest.raises(ValueError, match=r"between: draft_size is 1; needs at least 2"):
        Vocabulary.between(two, three, draft_size=1)
    with pytest.raises(ValueError, match=r"between: draft_size is -1; needs at least 2"):
        Vocabulary.between(two, three, draft_size=-1)
    special = {b"a": 0, "<s>": 1}
    with pytest.raises(ValueError, match=r"between: target_size is -1; needs at least 2"):
        Vocabulary.between(special, special, target_size=-1)
    with pytest.raises(ValueError, match=r"between: target_size is 2; needs at least 3"):
        Vocabulary.between(two, three, target_size=2)


def test_special_tokens_without_a_partner_by_name_match_by_role() -> None:
    """Llama's and ChatML's: end of text, turn ends, beginnings; each of them once."""
    ours = token_bytes({b"a": 0, "<s>": 1, "</s>": 2, "<|im_end|>": 3, "<unk>": 4})
    theirs = token_bytes(
        {b"a": 5, "<bos>": 0, "<eos>": 1, "<pad>": 2, "<end_of_turn>": 3, "<|tool|>": 4}
    )
    assert matching_ids(ours, theirs) == [5, 0, 1, 3, -1]
    assert matching_ids(theirs, ours) == [1, 2, -1, 3, -1, 0]
    affinity = Affinity.between(ours, theirs)
    assert affinity.row_top.tolist() == [5, 0, 1, 3, -1]
    # What has a partner by name keeps it, whatever its role.
    named = token_bytes({"<eos>": 0, "</s>": 1, b"x": 2})
    assert matching_ids(named, theirs) == [1, -1, -1]


def test_what_a_tokenizer_says_is_its_end_comes_before_usual_names() -> None:
    ours = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<|call|>")
    known = token_bytes(ours)
    assert known.roles["eos_token"][0] == ours.convert_tokens_to_ids("<|call|>")
    theirs = token_bytes({b"x": 0, "<eos>": 1})
    assert matching_ids(known, theirs)[ours.convert_tokens_to_ids("<|call|>")] == 1
