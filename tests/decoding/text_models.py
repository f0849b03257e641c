"""Drafters and targets with tokenizers of their own, small enough to know everything about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from rdk_cuda.decoding import Output


class LastToken:
    """Logits that depend on the last token, `[V, V]`; it remembers what it was fed."""

    device = torch.device("cpu")

    def __init__(self, table: Tensor, context: float = math.inf) -> None:
        self.table, self.context = table, context
        self.vocabulary_size = table.shape[1]
        self.padded = torch.cat([table, torch.full((1, self.vocabulary_size), math.nan)])
        self.sequences: list[list[int]] = []
        self.read = 0

    @property
    def lengths(self) -> list[int]:
        return [len(sequence) for sequence in self.sequences]

    def reset(self, batch_size: int) -> None:
        self.sequences = [[] for _ in range(batch_size)]

    def rollback(self, lengths: Sequence[int]) -> None:
        for sequence, length in zip(self.sequences, lengths, strict=True):
            del sequence[length:]

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        assert any(keep)
        rows, most = [], max(keep)
        for b, (sequence, new) in enumerate(zip(self.sequences, tokens, strict=True)):
            sequence.extend(new)
            self.read += len(new)
            assert keep[b] <= len(new)
            assert len(sequence) <= self.context
            ends = range(len(sequence) - keep[b] + 1, len(sequence) + 1)
            own = [self.state(sequence[:end]) for end in ends]
            rows.append(own + [-1] * (most - keep[b]))
        return Output(self.padded[torch.tensor(rows)])

    def state(self, context: Sequence[int]) -> int:
        return context[-1]

    def logits(self, context: Sequence[int]) -> Tensor:
        return self.table[self.state(context)]


class LastTwoOf(LastToken):
    """Logits that depend on the last two tokens, as far as these are among a few."""

    def __init__(self, known: Sequence[int], table: Tensor) -> None:
        super().__init__(table)
        self.known = {token: place for place, token in enumerate(known)}

    def state(self, context: Sequence[int]) -> int:
        before, last = (self.known.get(token, 0) for token in [0, *context][-2:])
        return before * len(self.known) + last


def byte_level(merges: Sequence[tuple[str, str]], without: str = "") -> Any:
    """All bytes, in their order, and these merges; none for what these characters stand for."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(without))
    tokens = [*alphabet, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE({t: id for id, t in enumerate(tokens)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def ids_of(tokenizer: Any, *spellings: bytes) -> list[int]:
    """The tokens of these bytes."""
    from rdk_cuda.vocabulary.token_bytes import token_bytes

    ids = token_bytes(tokenizer).ids()
    return [ids[spelling][0] for spelling in spellings]
