"""What a drafter with another tokenizer is fed: exactly the bytes of the target's tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from text_models import LastToken, byte_level, ids_of
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from rdk_cuda import Affinity
from rdk_cuda.decoding import ExactMatch, Output, SpeculativeDecoder, TextDrafter
from rdk_cuda.recipes.stages.tokenizers import shared_text
from rdk_cuda.vocabulary.text_tokens import TextTokens
from tests.trained_tokenizers import TOKENIZERS, manual

PAIRS = [
    ("byte-level", "SentencePiece"),
    ("SentencePiece", "byte-level"),
    ("SentencePiece", "Unigram"),
    ("Unigram", "demo"),
]
CHINESE = "北京是中华人民共和国的首都，全国的政治中心。人口两千万，面积一万六千平方公里！" * 4
EMOJI = "🦊👩‍👩‍👧 naïve façade Ω 한국어\t\x00\x7f\r\n ▁Ġ <s><|endoftext|> "
TEXTS = [manual()[20_000:60_000], Path(__file__).read_text("utf-8"), CHINESE, EMOJI * 5]


class Reader(LastToken):
    """Keeps what it is fed; its predictions say nothing."""

    def __init__(self, size: int, context: float = float("inf")) -> None:
        super().__init__(torch.zeros(1, size), context)

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        for sequence, new, kept in zip(self.sequences, tokens, keep, strict=True):
            sequence.extend(new)
            self.read += len(new)
            assert kept <= len(new)
            assert len(sequence) <= self.context
        return Output(self.table[:, None].expand(len(tokens), max(keep), -1))


@cache
def between(drafter: str, target: str) -> TextDrafter:
    ours, theirs = TOKENIZERS[drafter](), TOKENIZERS[target]()
    return TextDrafter(Reader(ours.get_vocab_size()), ours, theirs)


def reader(drafter: TextDrafter) -> Reader:
    assert isinstance(drafter.drafter, Reader)
    return drafter.drafter


def said(spellings: Sequence[Any], ids: Sequence[int]) -> bytes:
    """The bytes of tokens, special ones by name; those of no name are left out."""
    found = (spellings[id] for id in ids)
    return b"".join(s.encode() if isinstance(s, str) else s or b"" for s in found)


def expected(drafter: TextDrafter, context: Sequence[int]) -> bytes:
    """What the context says; SentencePiece has a space in front of it that others have not."""
    text = said(drafter.target_tokens.spellings, context)
    names = [drafter is between(*pair) and pair for pair in PAIRS]
    ours, theirs = next(pair for pair in names if pair)
    if text and theirs == "SentencePiece":
        text = text.removeprefix(b" ")
    return b" " + text if context and ours == "SentencePiece" else text


def chunk(
    rng: random.Random, drafter: TextDrafter, texts: Sequence[str], anything: float
) -> list[int]:
    """Some tokens: of a text that is cut anywhere, also within characters, or any tokens at all."""
    theirs = drafter.target_tokens
    ordinary = [
        id for id, spelling in enumerate(theirs.spellings[:3000]) if isinstance(spelling, bytes)
    ]
    if rng.random() < anything:
        return rng.choices(ordinary, k=rng.randrange(1, 6))
    text = rng.choice(texts).encode()
    start = rng.randrange(len(text))
    return theirs.encode(text[start : start + rng.randrange(1, 60)])


def fuzz(
    drafter: TextDrafter,
    rng: random.Random,
    rounds: int,
    texts: Sequence[str],
    anything: float = 0.2,
) -> int:
    """Grow a sequence and cut it back, many times; how often its tokens were those from scratch."""
    context: list[int] = []
    same = 0
    drafter.reset(1)
    for _ in range(rounds):
        if rng.random() < 0.4:
            context = context[: max(len(context) - rng.choice([1, 2, 5, 40]), 0)]
            drafter.rollback([len(context)])
        new = chunk(rng, drafter, texts, anything)
        logits = drafter.feed([new], [1]).logits
        context += new
        assert drafter.lengths == [len(context)]
        (own,) = reader(drafter).sequences
        if logits.isnan().all():  # of no text, as a lone space at its beginning is none
            assert expected(drafter, context) == b""
            own = []
        assert said(drafter.tokens.spellings, own) == expected(drafter, context), context
        if rng.random() < 0.3:  # drafts of its own, as of SLEM
            drafter.feed_own([rng.choices(range(300), k=2)], [1])
        text = [*drafter.tokens.start, *drafter.tokens.encode(expected(drafter, context))]
        same += own[: len(text)] == text
    return same


SEAMS = TEXTS[:2]  # prose and code: everywhere a space follows a visible character


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("rounds", [600, pytest.param(25_000, marks=pytest.mark.night)])
def test_the_drafter_reads_the_bytes_of_the_context_whatever_they_are(
    ours: str, theirs: str, rounds: int
) -> None:
    """Random strings and cuts, 10^5 in the night; nearly always the tokens of the whole text."""
    drafter, rng = between(ours, theirs), random.Random(1)
    same = sum(fuzz(drafter, rng, 30, TEXTS) for _ in range(rounds // 30))
    assert same > 0.98 * rounds // 30 * 30


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_where_a_space_follows_a_visible_character_the_tokens_are_those_of_the_whole_text(
    ours: str, theirs: str
) -> None:
    drafter, rng = between(ours, theirs), random.Random(2)
    assert fuzz(drafter, rng, 300, SEAMS, anything=0.0) == 300


def test_control_decoding_and_encoding_half_a_character_is_seen_to_change_it() -> None:
    drafter, context = between("SentencePiece", "byte-level"), []
    theirs, ours = TOKENIZERS["byte-level"](), TOKENIZERS["SentencePiece"]()
    context = drafter.target_tokens.encode("In 東京".encode()[:-1])
    naive = ours.encode(theirs.decode(context), add_special_tokens=False).ids
    assert said(drafter.tokens.spellings, naive) != expected(drafter, context)
    drafter.reset(1)
    drafter.feed([context], [1])
    assert (
        said(drafter.tokens.spellings, reader(drafter).sequences[0])
        == b" " + "In 東京".encode()[:-1]
    )


def test_only_the_tail_is_read_again() -> None:
    """Of 8,000 tokens, whether they are prose, code or Chinese without a space."""
    drafter = between("byte-level", "SentencePiece")
    for text in (manual()[:30_000], CHINESE * 20):
        context = drafter.target_tokens.encode(text.encode())
        drafter.reset(1)
        drafter.feed([context[:-200]], [1])
        before = reader(drafter).read
        for token in context[-200:]:
            drafter.feed([[token]], [1])
        assert reader(drafter).read - before < 4 * 200


def test_sequences_of_a_batch_are_read_each_by_itself() -> None:
    drafter = between("byte-level", "SentencePiece")
    prompts = [drafter.target_tokens.encode(text.encode()[:200]) for text in TEXTS]
    alone = []
    for prompt in prompts:
        drafter.reset(1)
        drafter.feed([prompt], [1])
        alone += reader(drafter).sequences
    drafter.reset(4)
    drafter.feed([prompts[0], [], prompts[2][:9], prompts[3]], [1, 0, 1, 0])
    drafter.rollback([len(prompts[0]), 0, 5, len(prompts[3])])
    drafter.feed([[], prompts[1], prompts[2][5:], []], [0, 1, 1, 1])
    assert reader(drafter).sequences == alone


def test_more_than_the_newest_token_is_refused() -> None:
    drafter = between("byte-level", "SentencePiece")
    drafter.reset(1)
    with pytest.raises(ValueError, match=r"keep is \[2\]; needs 0 or 1"):
        drafter.feed([[400, 401]], [2])


def test_beyond_the_drafters_context_and_before_any_text_nothing_is_predicted() -> None:
    ours, theirs = TOKENIZERS["byte-level"](), TOKENIZERS["SentencePiece"]()
    drafter = TextDrafter(Reader(ours.get_vocab_size(), context=12), ours, theirs)
    unknown = theirs.token_to_id("<unk>")
    word = drafter.target_tokens.encode(b" the")
    assert len(word) == 1
    drafter.reset(3)
    output = drafter.feed([word * 3, [unknown], word * 50], [1, 1, 1])
    assert output.logits.isnan().flatten(1).any(1).tolist() == [False, False, True]
    drafter.feed([word * 50, word, []], [1, 1, 0])
    drafter.rollback([3, 2, 3])
    output = drafter.feed([word, word, word], [1, 1, 1])
    assert not output.logits.isnan().any()
    assert said(drafter.tokens.spellings, reader(drafter).sequences[1]) == b"<unk>the the"


# Special tokens.


def chat(names: Sequence[str], bos: str | None, **roles: str) -> Any:
    tokenizer = byte_level([("h", "i")])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    if bos:
        place = (bos, tokenizer.token_to_id(bos))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[place]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def test_special_tokens_are_those_of_their_name_or_role_and_others_are_left_out() -> None:
    ours = chat(["<s>", "</s>", "<|user|>"], "<s>", bos_token="<s>", eos_token="</s>")
    theirs = chat(["<|begin|>", "<|user|>", "<|end|>", "<|odd|>"], None, eos_token="<|end|>")
    theirs.bos_token = "<|begin|>"
    drafter = TextDrafter(Reader(len(ours)), ours, theirs)
    prompt = "<|begin|><|user|>hi<|odd|>, <|end|><|user|>hi"
    context = theirs.backend_tokenizer.encode(prompt).ids
    drafter.reset(2)
    drafter.feed([context, ids_of(theirs, *(bytes([b]) for b in b"<s>hi"))], [1, 1])
    first, second = reader(drafter).sequences
    assert ours.convert_ids_to_tokens(first) == [
        "<s>",
        "<|user|>",
        "hi",
        ",",
        "Ġ",
        "</s>",
        "<|user|>",
        "hi",
    ]
    assert ours.convert_ids_to_tokens(second) == ["<s>", "<", "s", ">", "hi"]
    assert drafter.specials[ours.eos_token_id] == [theirs.eos_token_id]


# Bytes that one of both has no token for, as SmolLM2 has none for six control characters.

EOT = "\u0104"  # byte-level tokenizers write the byte 0x04 so


def test_a_byte_that_no_token_of_the_drafters_has_is_left_out_of_what_it_reads() -> None:
    ours, theirs = byte_level([("h", "i")], EOT), byte_level([("h", "i"), (EOT, "h")])
    drafter = TextDrafter(Reader(256), ours, theirs)
    drafter.reset(1)
    context = ids_of(theirs, b"h", b"\x04", b"i", b"\x04h", b"!")
    for length in (1, 3, 5):
        drafter.feed([context[drafter.lengths[0] : length]], [1])
    assert drafter.lengths == [5]
    assert reader(drafter).sequences[0] == ids_of(ours, b"hi", b"h", b"!")
    drafter.rollback([2])
    drafter.feed([ids_of(theirs, b"?")], [1])
    assert reader(drafter).sequences[0] == ids_of(ours, b"h", b"?")
    assert drafter.tokens.encode(b"h\x04i!") == ids_of(ours, b"hi", b"!")


def test_a_byte_that_the_drafter_has_in_longer_tokens_alone_is_refused() -> None:
    state = json.loads(byte_level([("h", "i")], EOT).to_str())
    state["model"]["vocab"][f"{EOT}h"] = len(state["model"]["vocab"])
    ours = Tokenizer.from_str(json.dumps(state))
    for theirs in (byte_level([]), ours):
        with pytest.raises(ValueError, match="has no token for byte 0x04 alone"):
            TextDrafter(Reader(257), ours, theirs)
    TextDrafter(Reader(257), ours, byte_level([], EOT))


def test_a_byte_that_the_target_has_no_token_for_is_not_drafted() -> None:
    assert_odd_byte_is_not_drafted(ExactMatch)


def assert_odd_byte_is_not_drafted(method: Any, **options: int) -> None:
    ours, theirs = byte_level([("a", EOT)]), byte_level([], EOT)
    a, odd = ids_of(ours, b"a", b"a\x04")
    table = torch.zeros(257, 257)
    table[:, a] = 30
    table[a, odd] = 60
    drafter = TextDrafter(LastToken(table), ours, theirs)
    proposer = method(drafter, draft_length=3, **options)
    always = torch.full((255, 255), -30.0)
    always[:, ids_of(theirs, b"a")] = 30
    decoder = SpeculativeDecoder(LastToken(always), proposer=proposer)
    found = decoder.generate([ids_of(theirs, b"b")], max_new_tokens=4, temperature=0.0)
    assert found.tokens == [ids_of(theirs, b"a") * 4]
    assert sum(found.statistics.accepted) >= 1


def test_counts_leave_out_what_the_drafter_cannot_spell() -> None:
    ours, theirs = byte_level([], EOT), byte_level([("a", EOT)])
    document = ids_of(theirs, b"b", b"\x04", b"a\x04", b"b")
    found = shared_text([document], *(TextTokens("", each) for each in (ours, theirs)))
    a, b = ids_of(ours, b"a", b"b")
    ids = ids_of(theirs, b"a\x04", b"b")
    assert found.counts == {a: {ids[0]: 1}, b: {ids[1]: 2}}
    assert (found.places, found.shared) == (4, 3)


# What cannot be served.


def test_tokenizers_that_cannot_spell_any_text_are_refused() -> None:
    plain = byte_level([])
    lower = byte_level([])
    lower.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match="drafter_tokenizer: it makes 'xax' of 'xAx'; needs a tok"):
        TextDrafter(Reader(256), lower, plain)
    words = Tokenizer(models.WordLevel({"x": 0, "?": 1}, unk_token="?"))
    words.decoder = plain.decoder
    with pytest.raises(ValueError, match="tokenizer: it makes"):
        TextDrafter(Reader(256), plain, words)
    with pytest.raises(TypeError, match="got a dict; needs what tokenises text"):
        TextDrafter(Reader(256), {b"a": 0}, plain)
    few = byte_level([])
    few.normalizer = normalizers.NFC()  # left out, as text has its form already
    assert TextTokens("tokenizer", few).encode("e\u0301".encode()) == [
        *few.encode("e").ids,
        *ids_of(few, b"\xcc", b"\x81"),
    ]


def test_a_head_that_does_not_lead_to_the_drafters_tokens_is_refused() -> None:
    ours = byte_level([])
    with pytest.raises(ValueError, match="the drafter predicts 100 tokens"):
        TextDrafter(Reader(100), ours, ours)
    other = Affinity.from_rows([{0: 1.0}, {1: 1.0}], target_size=2)
    with pytest.raises(ValueError, match="needs rows for these that lead to the 256 of drafter"):
        TextDrafter(Reader(2), ours, ours, own=other)


def test_a_pruned_head_leads_on_from_the_drafters_tokens_to_the_targets() -> None:
    """Two kept tokens and a virtual one, of which the target has one member and lacks another."""
    ours, theirs = byte_level([("a", "b")]), byte_level([("b", "a")])
    a, b, ab = ids_of(ours, b"a", b"b", b"ab")
    own = Affinity.from_rows([{a: 1.0}, {b: 1.0}, {b: 0.25, ab: 0.75}], target_size=257)
    drafter = TextDrafter(Reader(3), ours, theirs, own=own)
    expected = torch.zeros(3, 260, dtype=torch.float64)
    to_a, to_b = ids_of(theirs, b"a", b"b")
    expected[[0, 1, 2, 2], [to_a, to_b, to_b, to_a]] = torch.tensor([1, 1, 0.25, 0.75]).double()
    assert torch.allclose(drafter.between(260).dense(), expected)
    assert drafter.between(260) is drafter.between(260)
