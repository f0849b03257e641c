"""Greedy drafts of a drafter with another tokenizer: string-level exact match (SLEM)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from text_models import LastToken, byte_level, ids_of
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, ScreenedTokens, Vocabulary
from rdk_cuda.decoding import (
    DrafterChain,
    DrafterTree,
    ExactMatch,
    Output,
    SpeculativeDecoder,
    TextDrafter,
)
from rdk_cuda.decoding import exact_match as module
from rdk_cuda.decoding.generation import Batch
from rdk_cuda.decoding.lengths import Product
from rdk_cuda.vocabulary.text_tokens import TextTokens, incomplete
from tests.trained_tokenizers import TOKENIZERS, manual

CHINESE = "北京是中华人民共和国的首都，全国的政治中心。人口两千万，面积一万六千平方公里！"
EMOJI = "🦊👩‍👩‍👧 naïve façade Ω 한국어 🎉🎉 "
CODE = Path(__file__).read_text("utf-8")[:8_000]
READ = manual()[:60_000] + (CHINESE + EMOJI) * 40 + CODE * 4
PROMPTS = [manual()[1000:1080], CODE[400:470], CHINESE[:9], EMOJI[:7], "東"]


@cache
def bigrams(name: str) -> torch.Tensor:
    """Which token follows which in all of this text, as logits."""
    tokenizer = TOKENIZERS[name]()
    ids = torch.tensor(tokenizer.encode(READ, add_special_tokens=False).ids)
    size = tokenizer.get_vocab_size()
    counts = torch.full((size, size), 1e-3)
    counts.index_put_((ids[:-1], ids[1:]), torch.ones(ids.numel() - 1), accumulate=True)
    counts += 1e-6 * torch.rand(counts.shape, generator=torch.Generator().manual_seed(3))
    return counts.log()


def target(name: str) -> LastToken:
    return LastToken(bigrams(name))


@cache
def drafter(ours: str, theirs: str) -> TextDrafter:
    return TextDrafter(LastToken(bigrams(ours)), TOKENIZERS[ours](), TOKENIZERS[theirs]())


def prompts(name: str) -> list[list[int]]:
    return [TOKENIZERS[name]().encode(text, add_special_tokens=False).ids for text in PROMPTS]


PAIRS = [
    ("byte-level", "SentencePiece"),
    ("SentencePiece", "byte-level"),
    ("byte-level", "Unigram"),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("method", ["by itself", "SLEM", "between"])
def test_greedy_text_is_the_targets_own_and_drafts_are_accepted(
    ours: str, theirs: str, method: str
) -> None:
    """Prose, code, Chinese, emoji and a single character, in one batch. By itself it is SLEM."""
    own = drafter(ours, theirs)
    given: dict[str, Any] = {"drafter": own}
    if method == "SLEM":
        given = {"proposer": ExactMatch(own)}
    if method == "between":
        size = TOKENIZERS[theirs]().get_vocab_size()
        given = {"proposer": DrafterChain(own, own.between(size)), "affinity": own.between(size)}
    alone = SpeculativeDecoder(target(theirs), draft_length=0)
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.0}
    expected = alone.generate(prompts(theirs), **options)
    found = SpeculativeDecoder(target(theirs), **given).generate(prompts(theirs), **options)
    assert found.tokens == expected.tokens
    assert found.statistics.mean_accepted_length > 0.3


def test_a_sampled_sequence_does_not_depend_on_greedy_ones_beside_it() -> None:
    own, both = drafter("byte-level", "SentencePiece"), prompts("SentencePiece")[:2]
    decoder = SpeculativeDecoder(target("SentencePiece"), own)
    options: dict[str, Any] = {"max_new_tokens": 20}
    together = decoder.generate(both, temperature=[0.0, 1.0], seeds=[1, 2], **options)
    sampled = decoder.generate(both[1:], temperature=1.0, seeds=[2], **options)
    greedy = decoder.generate(both[:1], temperature=0.0, seeds=[1], **options)
    assert together.tokens == greedy.tokens + sampled.tokens


def test_what_needs_the_targets_tokens_is_refused() -> None:
    class ReadsStates(LastToken):
        observed = ()

        def observe(self, states: Any) -> None: ...

    own = drafter("byte-level", "SentencePiece")
    with pytest.raises(TypeError, match="DrafterTree: drafter is a TextDrafter, which has no"):
        DrafterTree(own, own.between(len(own.partners)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ReadsStates reads the target's hidden states"):
        TextDrafter(ReadsStates(torch.zeros(9, 9)), THEIRS, THEIRS)  # type: ignore[arg-type]


# What is proposed after a context, by a drafter whose greedy text is known.

THEIRS = byte_level(
    [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("å", "Ħ")]
)
OURS = byte_level([("h", "e"), ("l", "o"), ("Ġ", "he")])


def proposed(context: list[int], drafts: list[int], **options: Any) -> list[int]:
    """The drafts follow on each other, whatever is before them."""
    size = OURS.get_vocab_size()
    table = torch.zeros(size, size)
    said = TextTokens("", THEIRS).spelled(context)
    last = TextTokens("", OURS).encode(said or b"")[-1]
    for before, token in pairwise([last, *drafts]):
        table[before, token] = 9.0
    text = TextDrafter(LastToken(table), OURS, THEIRS)
    match = ExactMatch(text, draft_length=len(drafts), **options)
    match.reset(1)
    batch = Batch.of([context], 20, 0.0, [1], None, text.device)
    (tokens,) = match.propose(batch.sequences, batch.step([20])).tokens.tolist()
    return [int(token) for token in tokens]


def spelled(*pieces: bytes) -> list[int]:
    return ids_of(THEIRS, *pieces)


def test_drafts_are_the_targets_tokens_behind_its_context() -> None:
    """Also where its tokenizer would have made one token of the context's end and the draft."""
    draft = ids_of(OURS, b" he", b"l", b"lo", b"!")
    assert proposed(spelled(b"o"), draft) == spelled(b" hello", b"!")
    assert proposed(spelled(b" ", b"he"), ids_of(OURS, b"l", b"lo", b"?")) == spelled(
        b"ll", b"o", b"?"
    )


def test_half_a_character_is_held_back_and_one_that_the_context_began_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft = ids_of(OURS, b"l", b"\xe5", b"\x8c")  # of 北, whose third byte is not drawn yet
    assert proposed(spelled(b"he"), draft) == spelled(b"l")
    began = proposed(spelled(b"he", b"\xe5"), ids_of(OURS, b"\x8c", b"\x97", b"l"))
    assert began == spelled(b"\x8c", b"\x97", b"l")
    assert incomplete("北".encode()[:2]) == 2
    monkeypatch.setattr(module, "incomplete", lambda text: 0)
    assert proposed(spelled(b"he"), draft) != spelled(b"l")


def test_a_length_ends_drafts_and_there_is_room_for_the_targets_token() -> None:
    draft = ids_of(OURS, b" he", b"l", b"lo")
    assert proposed(spelled(b"o"), draft, length=Product(2.0)) == spelled(b" ", b"he")


def test_a_token_that_the_tokenizer_has_and_the_model_has_not_is_not_proposed() -> None:
    theirs = byte_level([("a", "b")])
    a, both = ids_of(theirs, b"a", b"ab")
    table = torch.zeros(257, 257)
    table[:, both] = 9.0
    text = TextDrafter(LastToken(table), theirs, theirs)
    own = LastToken(torch.eye(256).roll(1, 1))
    decoder = SpeculativeDecoder(own, proposer=ExactMatch(text))
    found = decoder.generate([[a]], max_new_tokens=6, temperature=0.0)
    assert found.tokens == [[a + place for place in range(1, 7)]]
    assert own.read == 6  # and none that was rejected


def test_what_slem_has_no_use_for_is_refused() -> None:
    own = drafter("byte-level", "SentencePiece")
    with pytest.raises(TypeError, match="ExactMatch: drafter is a LastToken; needs a TextDrafter"):
        ExactMatch(own.drafter)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dynamic_tokens need the full head"):
        ExactMatch(own, dynamic_tokens=RecentTokens(Vocabulary([0], 2000)))


def test_tokenizers_are_given_both_and_with_a_drafter() -> None:
    ours, theirs = TOKENIZERS["byte-level"](), TOKENIZERS["SentencePiece"]()
    model = LastToken(bigrams("byte-level"))
    with pytest.raises(ValueError, match="give both with a drafter, or neither"):
        SpeculativeDecoder(target("SentencePiece"), model, tokenizer=theirs)
    with pytest.raises(TypeError, match="tokenizer: got a NoneType"):
        SpeculativeDecoder(target("SentencePiece"), model, drafter_tokenizer=ours)


# Dynamic tokens.


class WithHead(LastToken):
    """The state is the last token's one-hot vector, and the head keeps a few tokens."""

    def __init__(self, table: Tensor, kept: list[int]) -> None:
        super().__init__(table[:, kept])
        self.full_head = table.T.contiguous(), None

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        last = [
            own[-1] if own else (old or [0])[-1]
            for own, old in zip(tokens, self.sequences, strict=True)
        ]
        return super().feed(tokens, keep)._replace(hidden=torch.eye(len(self.table))[last][:, None])


def test_dynamic_tokens_of_the_target_have_the_logits_of_the_drafters_tokens() -> None:
    ours, theirs = TOKENIZERS["byte-level"](), TOKENIZERS["SentencePiece"]()
    table, size = bigrams("byte-level"), theirs.get_vocab_size()
    kept = ids_of(ours, *(bytes([byte]) for byte in range(256)))
    own = Affinity.from_rows([{id: 1.0} for id in kept], target_size=ours.get_vocab_size())
    text = TextDrafter(WithHead(table, kept), ours, theirs, own=own)
    head = text.partners_head(size)
    the, unknown = ids_of(theirs, b" the")[0], theirs.token_to_id("<unk>")
    tokens = torch.tensor([[the, -1, unknown, size, 2**31 - 1]], dtype=torch.int32)
    state = torch.eye(len(table))[[5]]
    partner = ids_of(ours, b" the")[0], ours.token_to_id("<unk>")
    known, none = (float(table[5, id]) for id in partner), -math.inf
    assert head(state, tokens).tolist() == [  # type: ignore[operator]
        [next(known), none, next(known), none, none]
    ]
    # A head of single bytes drafts words by their first letter, unless they are offered.
    ids = torch.tensor(theirs.encode(READ, add_special_tokens=False).ids)
    often = torch.bincount(ids, minlength=size).topk(200).indices
    reached = torch.tensor(text.between(size).row_top.tolist())
    pruned = often[~torch.isin(often, reached)]
    plain, dynamic = (
        SpeculativeDecoder(target("SentencePiece"), text, dynamic_tokens=source)
        .generate(prompts("SentencePiece"), max_new_tokens=60, seeds=1)
        .statistics.mean_accepted_length
        for source in (None, lambda contexts: pruned.expand(len(contexts), -1))
    )
    assert dynamic > plain + 0.1


def test_screens_are_refused() -> None:
    own = drafter("byte-level", "SentencePiece")
    screen = object.__new__(ScreenedTokens)
    with pytest.raises(ValueError, match="a screen, which names rows of the drafter's head"):
        SpeculativeDecoder(target("SentencePiece"), own, dynamic_tokens=screen)


def test_at_32k_of_context_retokenising_takes_less_than_a_millisecond() -> None:
    """A pass of a model takes tens of them on a CPU; a loaded machine may be slow 89 times."""
    own = TextDrafter(
        LastToken(bigrams("byte-level")), TOKENIZERS["byte-level"](), TOKENIZERS["SentencePiece"]()
    )
    tokens = own.target_tokens.encode((manual() * 2).encode())[:33_000]
    own.reset(1)
    own.feed([tokens[:32_000]], [1])
    times = []
    for step in range(32_000, 32_500, 5):
        begun = time.perf_counter()
        own.feed([tokens[step : step + 5]], [1])
        own.rollback([step + 2])
        own.feed([tokens[step + 2 : step + 5]], [1])
        times.append((time.perf_counter() - begun) / 2)
    assert sorted(times)[10] < 1e-3
