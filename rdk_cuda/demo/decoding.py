"""Decoding the same prompts with every method: figures, and how each token came about."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rdk_cuda.calibration.methods import FULL, Method
from rdk_cuda.commands.models import Models
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.generation import Kind, Statistics
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .arguments import Settings
from .text import Prompt

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Decoded:
    """What decoding a batch of prompts gave.

    Attributes:
        tokens, kinds: for each prompt.
        seconds: for all of them, the prompts included.
    """

    tokens: list[list[int]]
    kinds: list[list[Kind]]
    statistics: Statistics
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of all prompts together."""
        return self.statistics.tokens / self.seconds


def decoder_of(models: Models, method: Method | None, draft_length: int) -> SpeculativeDecoder:
    """The decoder of a method, or of the target alone."""
    target = HuggingFaceModel(models.target)
    if method is None:
        return SpeculativeDecoder(target, draft_length=0)
    return SpeculativeDecoder(
        target,
        drafting_model(method, models),
        method.drafter.affinity,
        draft_length=draft_length,
        vocabulary=method.drafter.vocabulary,
        dynamic_tokens=method.drafter.dynamic_tokens,
    )


def drafting_model(method: Method, models: Models) -> HuggingFaceModel:
    """The drafter's model with the method's head."""
    if method.name == FULL:
        return HuggingFaceModel(models.drafter)
    drafter = method.drafter
    return HuggingFaceModel(models.drafter, head=drafter.weight, head_bias=drafter.bias)


def decode(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    settings: Settings,
) -> Decoded:
    """Continue all prompts past end tokens, so that every method has equal work."""
    ids = [prompt.ids for prompt in prompts]
    seeds = [(settings.seed << 16) + place for place in range(len(ids))]
    kinds: list[list[Kind]] = [[] for _ in ids]

    def record(sequence: int, new: list[int], how: list[Kind]) -> None:
        kinds[sequence] += how

    decoder.generate(
        ids, max_new_tokens=WARM_UP_TOKENS, temperature=settings.temperature, seeds=seeds
    )
    start = time.perf_counter()
    generation = decoder.generate(
        ids,
        max_new_tokens=settings.tokens,
        temperature=settings.temperature,
        seeds=seeds,
        on_tokens=record,
    )
    seconds = time.perf_counter() - start
    return Decoded(generation.tokens, kinds, generation.statistics, seconds)
