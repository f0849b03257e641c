"""Tiny Llama models with random weights and one byte-level tokenizer, as files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from examples.demo.corpus import held_out_files, read_text
from examples.demo.text import byte_level_tokenizer

from .tiny_llamas import llama

VOCABULARY, END_OF_TEXT = 400, "<|endoftext|>"


def save_model(
    directory: Path, *, hidden: int, seed: int, vocabulary: int = VOCABULARY, layers: int = 1
) -> None:
    """Its distributions are far from flat, so that greedy choices are clear."""
    of = {"width": hidden, "intermediate_size": 2 * hidden, "layers": layers, "eos_token_id": 0}
    of |= {"max_position_embeddings": 512, "initializer_range": 0.5}
    llama(vocabulary, seed=seed, **of).save_pretrained(directory)


def save_tokenizer(directory: Path, vocabulary: int = VOCABULARY) -> None:
    texts = map(read_text, held_out_files()[:3])
    tokenizer = byte_level_tokenizer(texts, vocabulary, [END_OF_TEXT])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)
    fast.save_pretrained(directory)


def save_pair(root: Path) -> tuple[Path, Path]:
    """A target with the tokenizer, and a drafter."""
    save_model(root / "target", hidden=16, seed=1)
    save_tokenizer(root / "target")
    save_model(root / "drafter", hidden=8, seed=2)
    return root / "target", root / "drafter"


def replace_head(model: Any, weight: Tensor) -> None:
    """Give a model a smaller head in place of its own."""
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    head.weight.data.copy_(weight.detach())
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
