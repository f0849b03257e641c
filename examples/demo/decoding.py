"""Decoding the same prompts with every method: figures, and how each token came about."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rdk_cuda.calibration.methods import FULL, Method
from rdk_cuda.calibration.recording import Each
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Kind, Statistics
from rdk_cuda.evaluation.timing import Watch
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.pairs import ModelPair

from .arguments import Settings
from .reading import drafting_model
from .text import Prompt

ROUNDS = 3  # more would be a longer demo: small batches take longer
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Decoded:
    """The results of decoding a batch of prompts.

    Attributes:
        tokens, kinds: for each prompt.
        rounds: the statistics of each round.
        seconds: of each round, including the reading of prompts.
    """

    tokens: list[list[int]]
    kinds: list[list[Kind]]
    rounds: list[Statistics]
    seconds: list[float]

    @classmethod
    def of(cls, prompts: int) -> "Decoded":
        """Nothing decoded yet."""
        return cls([[] for _ in range(prompts)], [[] for _ in range(prompts)], [], [])

    @property
    def statistics(self) -> Statistics:
        """The sums over all rounds."""
        places = range(len(self.rounds[0].drafted))
        return Statistics(
            drafted=[sum(one.drafted[place] for one in self.rounds) for place in places],
            accepted=[sum(one.accepted[place] for one in self.rounds) for place in places],
            out_of_vocabulary=sum(one.out_of_vocabulary for one in self.rounds),
            resampled=sum(one.resampled for one in self.rounds),
            bonus=sum(one.bonus for one in self.rounds),
            target_passes=sum(one.target_passes for one in self.rounds),
        )

    @property
    def speeds(self) -> list[float]:
        """Tokens per second in each round."""
        return [one.tokens / took for one, took in zip(self.rounds, self.seconds, strict=True)]


def decoder_of(models: ModelPair, method: Method | None, draft_length: int) -> SpeculativeDecoder:
    """The decoder of a method, or of the target alone."""
    target = HuggingFaceModel(models.target)
    if method is None:
        return SpeculativeDecoder(target, draft_length=0)
    return SpeculativeDecoder(
        target,
        drafting_model(models, **head_of(method)),
        method.drafter.affinity,
        draft_length=draft_length,
        vocabulary=method.drafter.vocabulary,
        dynamic_tokens=method.drafter.dynamic_tokens,
    )


def head_of(method: Method) -> dict[str, Tensor | None]:
    """A method's head; none of its own for the full drafter."""
    drafter = method.drafter
    return {} if method.name == FULL else {"head": drafter.weight, "head_bias": drafter.bias}


def decode_in_turn(
    models: ModelPair,
    methods: Sequence[Method | None],
    prompts: Sequence[Prompt],
    settings: Settings,
    each: Each,
) -> tuple[list[Decoded], str | None]:
    """Continue all prompts with every method, None for the target alone, and watch the machine.

    Each round has a share of the prompts, which all methods continue in turn. A load that comes or
    goes then meets all of them, so that the ratio of two methods in one round is fair.

    Returns:
        The results of each method, and a sentence if the times cannot be trusted.
    """
    rounds = [range(first, len(prompts), ROUNDS) for first in range(min(ROUNDS, len(prompts)))]
    decoded = [Decoded.of(len(prompts)) for _ in methods]
    turns = [(places, place) for places in rounds for place in range(len(methods))]
    with Watch() as watch:
        for places, place in each(turns, f"Decoding {len(prompts)} prompts"):
            decoder = decoder_of(models, methods[place], settings.draft_length)
            decode(decoder, prompts, places, settings, decoded[place])
    return decoded, watch.doubt


def decode(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    places: Sequence[int],
    settings: Settings,
    into: Decoded,
) -> None:
    """One round. Prompts continue past end tokens, so that every method has the same work."""
    ids = [prompts[place].ids for place in places]
    seeds = [(settings.seed << 16) + place for place in places]

    def record(sequence: int, new: list[int], how: list[Kind]) -> None:
        into.kinds[places[sequence]] += how

    decoder.generate(
        ids[:1], max_new_tokens=WARM_UP_TOKENS, temperature=settings.temperature, seeds=seeds[:1]
    )
    start = time.perf_counter()
    generation = decoder.generate(
        ids,
        max_new_tokens=settings.tokens,
        temperature=settings.temperature,
        seeds=seeds,
        on_tokens=record,
    )
    into.seconds.append(time.perf_counter() - start)
    into.rounds.append(generation.statistics)
    for place, tokens in zip(places, generation.tokens, strict=True):
        into.tokens[place] = tokens
