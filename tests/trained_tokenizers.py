"""Real tokenizers: the demo's, of Python source, and others that are trained here on its manual."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from pydoc_data import topics  # type: ignore[import-untyped]
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from examples.demo.text import byte_level_tokenizer

DEMO = Path(__file__).parents[1] / "examples" / "demo" / "models" / "target" / "tokenizer.json"
SPECIAL = ["<unk>", "<s>", "<|endoftext|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ODD = "naïve façade, 東京, 🦊 and Ω\t\x00\x7f\r\n  ▁Ġ"


@cache
def manual() -> str:
    """English, of the Python that runs the tests; not among the texts of the demo."""
    return "\n".join(topics.topics.values())[:300_000]


@cache
def demo() -> Tokenizer:
    """Byte-level BPE of source code, 16,384 tokens."""
    return Tokenizer.from_file(str(DEMO))


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE of the manual, as GPT-2 has it, with a special and an ordinary added token."""
    tokenizer = byte_level_tokenizer([manual()], 2000, SPECIAL)
    tokenizer.add_special_tokens([AddedToken("<|call|>", special=True)])
    tokenizer.add_tokens([AddedToken("    return self._", normalized=False)])
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """BPE of the manual as Llama 2 has it: ▁ for spaces, byte fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=1700, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator([manual()], trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    tokens = [*SPECIAL, *BYTES, *sorted(learned["vocab"], key=learned["vocab"].get)]
    tokenizer = Tokenizer(
        models.BPE(
            {token: id for id, token in enumerate(tokens)},
            [tuple(pair) for pair in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """Unigram of the manual with Metaspace and byte fallback."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=900, show_progress=False)
    tokenizer.train_from_iterator([manual()[:100_000]], trainer)
    learned = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = [(token, 0.0) for token in SPECIAL] + [(token, -20.0) for token in BYTES]
    pieces += [(token, score) for token, score in learned]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


TOKENIZERS: dict[str, Any] = {
    "demo": demo,
    "byte-level": byte_level,
    "SentencePiece": sentencepiece,
    "Unigram": unigram,
}
