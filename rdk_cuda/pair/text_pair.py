"""A target and a drafter with another tokenizer: what they have in common is the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rdk_cuda.integrations.huggingface import HuggingFaceModel

from ..affinity import Affinity
from ..calibration.methods import Method
from ..calibration.reading import Read, Reading
from ..calibration.tokenizers import SharedText, shared_text, token_level_methods
from ..decoding import TextDrafter
from ..evaluation.speed import Times, measure_model_times
from ..vocabulary import Vocabulary
from ..vocabulary.token_bytes import TokenBytes
from . import pairs
from .pairs import ModelPair, head_size, readable


@dataclass(frozen=True)
class TextPair(ModelPair):
    """Two language models with a tokenizer each.

    Attributes:
        tokenizer: the target's.
        drafter_tokenizer: the drafter's own.
        text: the drafter as it reads the target's tokens, with a head of one row: here nobody asks
            for logits.

    Raises:
        TypeError, ValueError: as `TextDrafter`.
    """

    drafter_tokenizer: Any = None
    text: TextDrafter = field(init=False)

    def __post_init__(self) -> None:
        """Make the drafter that reads text."""
        head = self.drafter.get_output_embeddings().weight.detach()
        model = HuggingFaceModel(self.drafter, head=head[:1])
        own = Affinity.intersection(Vocabulary([0], head_size(self.drafter)))
        text = TextDrafter(model, self.drafter_tokenizer, self.tokenizer, own=own)
        object.__setattr__(self, "text", text)

    @property
    def context(self) -> int:
        """How many of the target's tokens both can read; the drafter's may be twice as many."""
        return min(readable(self.target), readable(self.drafter) // 2)

    def read(self, draft_length: int) -> Read:
        """What both say of a text, at every position but the first, which may have none."""

        @torch.no_grad()
        def read(ids: Tensor) -> Reading:
            logits = self.target(input_ids=ids.to(self.target.device), use_cache=False).logits
            self.text.reset(len(ids))
            states = [self._state(column) for column in ids.T.tolist()]
            self.text.reset(0)
            return Reading(logits[:, 1:], torch.stack(states[1:], 1))

        return read

    def _state(self, tokens: Sequence[int]) -> Tensor:
        """`[B, d]` behind the next token of each text; 0 where the drafter cannot read it."""
        output = self.text.feed([[token] for token in tokens], [1] * len(tokens))
        assert output.hidden is not None  # the model was given a head
        return output.hidden[:, 0].masked_fill(output.logits[:, 0, :1].isnan(), 0.0)

    def how_read(self, draft_length: int) -> str:
        """As of `ModelPair`."""
        return ", each in its own tokens"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Which target token each of the drafter's is, by bytes, name or role."""
        return Vocabulary.between(*self._known, **self._sizes)

    @cached_property
    def by_prefix(self) -> Affinity:
        """`Affinity.between` of the two, on the CPU."""
        return Affinity.between(*self._known, **self._sizes)

    @property
    def _known(self) -> tuple[TokenBytes, TokenBytes]:
        return self.text.tokens.known, self.text.target_tokens.known

    @property
    def _sizes(self) -> dict[str, Any]:
        return {"draft_size": head_size(self.drafter), "target_size": self.vocabulary_size}

    def shared_text(self, documents: Sequence[Sequence[int]]) -> SharedText:
        """Where both begin a token in texts of the target's tokens."""
        return shared_text(documents, self.text.tokens, self.text.target_tokens)

    def methods(self, affinity: Affinity, name: str) -> list[Method]:
        """TLI, the prefix rule and this affinity, of this name."""
        return token_level_methods(
            self.drafter_head, self.vocabulary, self.by_prefix, affinity, name
        )

    def times(self, context: list[int], draft_length: int) -> Times:
        """As of `ModelPair`, each behind its own tokens of the text."""
        spelled = (self.text.target_tokens.spellings[id] for id in context)
        own = self.text.tokens.encode(b"".join(t for t in spelled if isinstance(t, bytes)))
        return measure_model_times(
            self.target,
            self.drafter,
            torch.tensor(context, dtype=torch.int64, device="cpu"),
            draft_length,
            drafter_context=torch.tensor(own or [0], dtype=torch.int64, device="cpu"),
            seconds=pairs.TIMING_SECONDS,
        )
