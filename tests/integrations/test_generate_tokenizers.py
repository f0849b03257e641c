"""A drafter with another tokenizer in `Generate`: batches, padding, streaming, stop strings."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.integrations.huggingface import Generate
from tests.tiny_llamas import llama
from tests.trained_tokenizers import TOKENIZERS

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["def area(self):\n    return", "The value of 東京 is", "🦊 and naïve", "x"]


@cache
def tokenizer(name: str) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[name](), pad_token="<unk>", padding_side="left"
    )


def model(name: str, seed: int) -> Any:
    """It predicts more than its tokenizer has."""
    of = {"intermediate_size": 32, "max_position_embeddings": 256, "eos_token_id": None}
    return llama(len(tokenizer(name)) + 3, seed=seed, initializer_range=0.5, **of)


def generate(ours: str, theirs: str, **options: Any) -> Generate:
    both = {"tokenizer": tokenizer(theirs), "drafter_tokenizer": tokenizer(ours)}
    return Generate(model(ours, 2), **both, **options)


def inputs(name: str) -> Any:
    return tokenizer(name)(TEXTS, return_tensors="pt", padding=True, add_special_tokens=False)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("byte-level", "SentencePiece"), ("SentencePiece", "byte-level")]
)
def test_a_padded_batch_is_continued_greedily_as_by_the_library_itself(
    ours: str, theirs: str
) -> None:
    target, own = model(theirs, 1), generate(ours, theirs)
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    expected = target.generate(**inputs(theirs), **options)
    for _ in range(2):  # with the same drafter again
        found = target.generate(**inputs(theirs), **options, custom_generate=own)
        assert torch.equal(found, expected)
    assert own.statistics.drafted[0] > 0


def test_sampled_text_is_drafted_by_the_affinity_between_or_a_given_one() -> None:
    theirs = "SentencePiece"
    target = model(theirs, 1)
    size = target.config.vocab_size
    both = tokenizer("byte-level"), tokenizer(theirs)
    sizes = {"draft_size": len(both[0]) + 3, "target_size": size}
    shared = Affinity.intersection(Vocabulary.between(*both, **sizes))
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "pad_token_id": 0}
    texts = []
    for affinity in (None, Affinity.between(*both, **sizes), shared):
        own = generate("byte-level", theirs, affinity=affinity, seed=3)
        texts.append(target.generate(**inputs(theirs), **options, custom_generate=own).tolist())
        assert own.statistics.tokens == 4 * 12
    assert texts[0] == texts[1] != texts[2]


def test_a_drafters_tokenizer_is_not_for_what_is_no_drafter_with_text() -> None:
    with pytest.raises(TypeError, match="TextDrafter: tokenizer: got a NoneType"):
        Generate(model("byte-level", 2), drafter_tokenizer=tokenizer("byte-level"))
