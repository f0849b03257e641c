"""What a drafter with another tokenizer is fed: exactly the bytes of the target's tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tokenizers")

from text_models import LastToken, byte_level, ids_of
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from rdk_cuda import Affinity
from rdk_cuda.decoding import Output, TextDrafter
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


def chunk(rng: random.Random, drafter: TextDrafter) -> list[int]:
    """Some tokens: of a text that is cut anywhere, also within characters, or any tokens at all."""
    theirs = drafter.target_tokens
    ordinary = [id for id, spelling in enumerate(theirs.spellings[:3000]) if isinstance(spelling, bytes)]
    if rng.random() < 0.2:
        return rng.choices(ordinary, k=rng.randrange(1, 6))
    text = rng.choice(TEXTS).encode()
    start = rng.randrange(len(text))
    return theirs.encode(text[start : start + rng.randrange(1, 60)])


def fuzz(drafter: TextDrafter, rng: random.Random, rounds: int) -> int:
    """Grow a sequence and cut it back, many times; how often its tokens were those from scratch."""
    reader, context, same = drafter.drafter, [], 0
    drafter.reset(1)
    for _ in range(rounds):
        if rng.random() < 0.4:
            context = context[: max(len(context) - rng.choice([1, 2, 5, 40]), 0)]
            drafter.rollback([len(context)])
        new = chunk(rng, drafter)
        drafter.feed([new], [1])
        context += new
        assert drafter.lengths == [len(context)]
        (own,) = reader.sequences
        assert said(drafter.tokens.spellings, own) == expected(drafter, context), context
        if rng.random() < 0.3:  # drafts of its own, as of SLEM
            drafter.feed_own([rng.choices(range(300), k=2)], [1])
        text = drafter.tokens.encode(expected(drafter, context))
        same += own[: len(text)] == text
    return same


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_drafter_reads_the_bytes_of_the_context_whatever_they_are(
    ours: str, theirs: str
) -> None:
    drafter, rng = between(ours, theirs), random.Random(1)
    same = 0
    for _ in range(20):
        same += fuzz(drafter, rng, 30)
    print(ours, theirs, same)
