"""The tokens that no pruning may take: special tokens, and those that spell any byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rdk_cuda import Vocabulary
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import torch  # noqa: E402

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "models" / "target"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(**options: Any) -> Any:
    vocabulary = ["<unk>", "<s>", *BYTES, "a", "b", "ab", "Ġ", "Ã", "©"]
    model = tokenizers.models.BPE(
        {token: id for id, token in enumerate(vocabulary)},
        [("a", "b")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", **options
    )


def unigram() -> Any:
    vocabulary = [("<unk>", 0.0), *((byte, -9.0) for byte in BYTES), ("▁a", -1.0), ("b", -2.0)]
    model = tokenizers.models.Unigram(vocabulary, unk_id=0, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def assert_spells_unknown_words(tokenizer: Any, ids: list[int]) -> None:
    spelled = tokenizer("東京🦊", add_special_tokens=False)["input_ids"]
    assert len(spelled) >= 10
    assert set(spelled) <= set(ids)


def test_a_byte_level_bpe_keeps_its_end_token_and_its_256_bytes() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO, local_files_only=True)
    ids = indispensable_tokens(tokenizer)
    assert ids.dtype == torch.int64
    assert ids.numel() == 257
    assert ids[0] == tokenizer.eos_token_id
    assert all(len(tokenizer.decode([id]).encode()) in (1, 3) for id in ids[1:].tolist())
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("naïve 東京 🦊 \x00\x7f")
    characters = sorted({character for piece, _ in pieces for character in piece})
    assert set(tokenizer.convert_tokens_to_ids(characters)) <= set(ids.tolist())


def test_a_sentencepiece_bpe_keeps_its_byte_fallbacks_but_no_letters() -> None:
    tokenizer = bpe()
    ids = indispensable_tokens(tokenizer).tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == ["<unk>", "<s>", *BYTES]
    assert_spells_unknown_words(tokenizer, ids)


def test_a_unigram_model_keeps_its_byte_fallbacks() -> None:
    tokenizer = unigram()
    ids = indispensable_tokens(tokenizer).tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == ["<unk>", *BYTES]
    assert_spells_unknown_words(tokenizer, ids)


def test_added_tokens_are_kept_if_they_are_special() -> None:
    tokenizer = bpe()
    tokenizer.add_tokens([tokenizers.AddedToken("<|call|>", special=True)])
    tokenizer.add_tokens([tokenizers.AddedToken("plain", special=False)])
    tokens = tokenizer.convert_ids_to_tokens(indispensable_tokens(tokenizer).tolist())
    assert "<|call|>" in tokens
    assert "plain" not in tokens


def test_they_fit_into_a_vocabulary_whatever_their_score() -> None:
    tokenizer = bpe()
    always = indispensable_tokens(tokenizer)
    scores = torch.arange(len(tokenizer))
    vocabulary = Vocabulary.most_likely(scores, always.numel() + 1, always=always)
    assert vocabulary.kept.tolist() == [*always.tolist(), len(tokenizer) - 1]
