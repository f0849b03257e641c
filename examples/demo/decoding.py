"""Decoding the same prompts in every way, in turn: tokens, how each came about, and times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, Protocol

import torch

from rdk_cuda.calibration.methods import FULL, Method
from rdk_cuda.calibration.recording import Each
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Kind, Statistics
from rdk_cuda.evaluation.timing import Watch
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .arguments import Settings
from .reading import drafting_model
from .shipped import Models
from .text import Prompt

OnTokens = Callable[[int, list[int], list[Kind]], None]

ROUNDS = 4  # the spread of a speed is over these
WARM_UP_TOKENS = 4


class Way(Protocol):
    """A way to continue prompts of one length by some tokens, past end tokens."""

    name: str

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        temperature: float,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """The new tokens, and how they came about if that is known."""


class Ours:
    """`SpeculativeDecoder` with a method for each temperature; None: the target alone."""

    def __init__(
        self, name: str, models: Models, methods: dict[float, Method | None], draft_length: int
    ) -> None:
        self.name = name
        self.decoders = {
            temperature: decoder_of(models, method, draft_length)
            for temperature, method in methods.items()
        }

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        temperature: float,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """As of `Way`."""
        decoder = self.decoders[temperature]
        options: dict[str, Any] = {"temperature": temperature, "seeds": seeds}
        done = decoder.generate(prompts, max_new_tokens=tokens, on_tokens=on_tokens, **options)
        return done.tokens, done.statistics


class Transformers:
    """The library's own `generate`, alone or with an assistant."""

    def __init__(self, name: str, models: Models, *, assisted: bool) -> None:
        self.name, self.target = name, models.pair.target
        self.options = {"assistant_model": models.assistant} if assisted else {}

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        temperature: float,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """As of `Way`."""
        torch.manual_seed(seeds[0])
        ids = torch.tensor(prompts, dtype=torch.int64, device=self.target.device)
        options: dict[str, Any] = {"max_new_tokens": tokens, "eos_token_id": None, **self.options}
        if temperature > 0:
            options |= {"temperature": temperature, "top_k": 0}
        done = self.target.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=temperature > 0, **options
        )
        return done[:, ids.shape[1] :].tolist(), None


def decoder_of(models: Models, method: Method | None, draft_length: int) -> SpeculativeDecoder:
    """The decoder of a method, or of the target alone."""
    pair = models.pair
    if method is None:
        return SpeculativeDecoder(HuggingFaceModel(pair.target), draft_length=0)
    pruned = method.drafter
    own = (None, None) if method.name == FULL else (pruned.weight, pruned.bias)
    return SpeculativeDecoder(
        HuggingFaceModel(pair.target),
        drafting_model(pair, *own),
        pruned.affinity,
        draft_length=draft_length,
        method="block",
        vocabulary=pruned.vocabulary,
        dynamic_tokens=pruned.dynamic_tokens,
    )


class Case(NamedTuple):
    """What is decoded: at a temperature, so many sequences at once."""

    temperature: float
    batch: int


@dataclass
class Decoded:
    """What a way gave in one case.

    Attributes:
        tokens: of each prompt.
        seconds: of each round, including the reading of prompts.
        rounds: how many tokens each round gave.
        statistics: of each call, where they are known.
    """

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        """Tokens a second in each round."""
        return [count / took for count, took in zip(self.rounds, self.seconds, strict=True)]

    @property
    def target_passes_per_token(self) -> float | None:
        """Of all calls."""
        passes = sum(one.target_passes for one in self.statistics)
        return passes / sum(self.rounds) if self.statistics else None


def decode_in_turn(
    ways: Sequence[Way],
    cases: Sequence[Case],
    prompts: Sequence[Prompt],
    settings: Settings,
    each: Each,
) -> tuple[dict[Case, list[Decoded]], str | None]:
    """Continue all prompts in every way and case, and watch the machine.

    Each round has a share of the prompts, which all ways continue in turn. A load that comes or
    goes then meets all of them, so that the ratio of two ways in one round is fair.

    Returns:
        For each case the results of each way, and a sentence if the times cannot be trusted.
    """
    decoded = {case: [Decoded() for _ in ways] for case in cases}
    turns = list(product(cases, range(ROUNDS), zip(ways, range(len(ways)), strict=True)))
    with Watch() as watch:
        for case, number, (way, place) in each(turns, f"Decoding {len(prompts)} prompts"):
            share = prompts[number::ROUNDS]
            into = decoded[case][place]
            if number == 0:
                way([share[0].ids], WARM_UP_TOKENS, case.temperature, [0])
            begin, count = time.perf_counter(), 0
            for first in range(0, len(share), case.batch):
                ids = [prompt.ids for prompt in share[first : first + case.batch]]
                seeds = [
                    (settings.seed << 16) + number * len(prompts) + first + b
                    for b in range(len(ids))
                ]
                tokens, statistics = way(ids, settings.tokens, case.temperature, seeds)
                into.tokens += tokens
                into.statistics += [] if statistics is None else [statistics]
                count += sum(map(len, tokens))
            into.seconds.append(time.perf_counter() - begin)
            into.rounds.append(count)
    return decoded, watch.doubt
