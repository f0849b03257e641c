"""Decoding the same prompts in every way, in turn: tokens, how each came about, and times."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Kind, Statistics
from rdk_cuda.decoding.models import CausalModel, Output
from rdk_cuda.dynamic_tokens.columns import TokenHead
from rdk_cuda.integrations.eagle3 import Eagle3Drafter
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.inputs.pairs import ModelPair, Pair, StatePair
from rdk_cuda.recipes.recording import Each
from rdk_cuda.recipes.stages.pruning import FULL, Method
from rdk_cuda.recipes.timing import Watch

from .arguments import Settings
from .shipped import Models
from .text import Prompt

OnTokens = Callable[[int, list[int], list[Kind]], None]
Item = TypeVar("Item")

ROUNDS = 4  # the spread of a speed is over these
WARM_UP_TOKENS = 4
CHOICE_PROMPTS, CHOICE_TOKENS = 3, 32  # on which draft lengths are compared


class Case(NamedTuple):
    """What is decoded: at a temperature, so many sequences at once."""

    temperature: float
    batch: int


class Way(Protocol):
    """A way to continue prompts of one length by some tokens, past end tokens.

    Attributes:
        model_seconds: so far in the passes of its models; None where that is not known.
    """

    name: str
    model_seconds: float | None

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        case: Case,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """The new tokens, and how they came about if that is known."""


class Ours:
    """`SpeculativeDecoder` with a method for each temperature; None: the target alone.

    Attributes:
        lengths: K, how many drafts a pass may get, ascending.
        chosen: the one that is taken in a case; the longest if none was chosen.
        model_seconds: in `feed` of its models. None on a GPU, where passes go on behind it.
    """

    def __init__(
        self,
        name: str,
        models: Models,
        methods: Mapping[float, Method | None],
        lengths: Sequence[int] = (0,),
    ) -> None:
        self.name, self.lengths = name, tuple(lengths)
        self.chosen: dict[Case, int] = {}
        self.model_seconds = None if models.pair.target.device.type == "cuda" else 0.0
        self.decoders = {
            (temperature, length): decoder
            for temperature, method in methods.items()
            for length, decoder in decoders_of(models, method, lengths, self._watch)
        }

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        case: Case,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """As `Way` says."""
        decoder = self.decoders[case.temperature, self.chosen.get(case, self.lengths[-1])]
        options: dict[str, Any] = {"temperature": case.temperature, "seeds": seeds}
        done = decoder.generate(prompts, max_new_tokens=tokens, on_tokens=on_tokens, **options)
        return done.tokens, done.statistics

    def _watch(self, model: CausalModel) -> None:
        feed = model.feed

        def timed(tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
            begin = time.perf_counter()
            try:
                return feed(tokens, keep)
            finally:
                if self.model_seconds is not None:
                    self.model_seconds += time.perf_counter() - begin

        model.feed = timed  # type: ignore[method-assign]


class Transformers:
    """The library's own `generate`, alone or with an assistant."""

    model_seconds: float | None = None

    def __init__(self, name: str, models: Models, *, assisted: bool) -> None:
        self.name, self.target = name, models.pair.target
        self.options = {"assistant_model": models.assistant} if assisted else {}

    def __call__(
        self,
        prompts: list[list[int]],
        tokens: int,
        case: Case,
        seeds: list[int],
        on_tokens: OnTokens | None = None,
    ) -> tuple[list[list[int]], Statistics | None]:
        """As `Way` says."""
        torch.manual_seed(seeds[0])
        ids = torch.tensor(prompts, dtype=torch.int64, device=self.target.device)
        options: dict[str, Any] = {"max_new_tokens": tokens, "eos_token_id": None, **self.options}
        hot = case.temperature > 0
        if hot:
            options |= {"temperature": case.temperature, "top_k": 0}
        done = self.target.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=hot, **options
        )
        return done[:, ids.shape[1] :].tolist(), None


def decoders_of(
    models: Models,
    method: Method | None,
    lengths: Sequence[int],
    watch: Callable[[CausalModel], None] = lambda model: None,
) -> Iterator[tuple[int, SpeculativeDecoder]]:
    """A method's decoders, or the target's alone, which share their models; `watch` gets each."""
    pair = models.pair
    if method is None:
        alone = HuggingFaceModel(pair.target)
        watch(alone)
        yield 0, SpeculativeDecoder(alone, draft_length=0)
        return
    pruned, drafter = method.drafter, drafter_of(pair, method)
    target = HuggingFaceModel(pair.target, state_layers=drafter.state_layers)
    for model in (target, drafter):
        watch(model)
    for length in lengths:
        yield (
            length,
            SpeculativeDecoder(
                target,
                drafter,
                pruned.affinity,
                draft_length=length,
                method="block",
                vocabulary=pruned.vocabulary,
                dynamic_tokens=pruned.dynamic_tokens,
                full_head=full_head_of(pair, method),
            ),
        )


def full_head_of(pair: Pair, method: Method) -> TokenHead | None:
    """What an EAGLE-3 drafter's dynamic tokens take their logits from; a model has its own head."""
    if isinstance(pair, ModelPair) or method.drafter.dynamic_tokens is None:
        return None
    rows = pair.drafter.full_head(pair.target)
    assert rows is not None  # the head was trained with all tokens
    return rows, None


def drafter_of(pair: Pair, method: Method) -> HuggingFaceModel | Eagle3Drafter:
    """The drafter with a method's head."""
    pruned = method.drafter
    # Its own head, unless it was trained for fewer tokens.
    own = method.name == FULL and pair.kept is None
    head, bias = (None, None) if own else (pruned.weight, pruned.bias)
    if isinstance(pair, StatePair):
        return pair.drafting(head, bias)
    return HuggingFaceModel(pair.drafter, head=head, head_bias=bias)


@dataclass
class Decoded:
    """What a way gave in one case.

    Attributes:
        tokens: of each prompt.
        seconds: of each round, including the reading of prompts.
        model_seconds: of all rounds, in the passes of its models; None where that is not known.
        rounds: how many tokens each round gave.
        statistics: of each call, where they are known.
    """

    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    model_seconds: float | None = 0.0
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

    def add(
        self, way: Way, case: Case, prompts: Sequence[Prompt], tokens: int, first_seed: int
    ) -> None:
        """A round: continue prompts, so many at once as the case has."""
        before, count = way.model_seconds, 0
        begin = time.perf_counter()
        for first in range(0, len(prompts), case.batch):
            ids = [prompt.ids for prompt in prompts[first : first + case.batch]]
            seeds = [first_seed + first + b for b in range(len(ids))]
            new, statistics = way(ids, tokens, case, seeds)
            self.tokens += new
            self.statistics += [] if statistics is None else [statistics]
            count += sum(map(len, new))
        self.seconds.append(time.perf_counter() - begin)
        if before is None or way.model_seconds is None or self.model_seconds is None:
            self.model_seconds = None
        else:
            self.model_seconds += way.model_seconds - before
        self.rounds.append(count)


def choose(
    ways: Sequence[Way], cases: Sequence[Case], prompts: Sequence[Prompt], each: Each
) -> dict[Case, Ours]:
    """Measure each way's draft lengths on text that nothing else is measured on.

    Each way gets its fastest length in each case. Longer ones are tried until one is slower.

    Returns:
        The fastest of our ways in each case; it may be the target alone.
    """
    ours = [way for way in ways if isinstance(way, Ours)]
    best: dict[Case, list[tuple[float, Ours]]] = {case: [] for case in cases}
    for case, way in each(list(product(cases, ours)), "Choosing draft lengths"):
        own = spaced(prompts, max(CHOICE_PROMPTS, case.batch))
        speeds: dict[int, float] = {}
        way([own[0].ids], WARM_UP_TOKENS, case, [0])
        for length in way.lengths:
            way.chosen[case] = length
            decoded = Decoded()
            decoded.add(way, case, own, CHOICE_TOKENS, 0)
            speeds[length] = decoded.speeds[0]
            if decoded.speeds[0] < max(speeds.values()):
                break
        way.chosen[case] = max(speeds, key=lambda length: speeds[length])
        best[case].append((max(speeds.values()), way))
    return {case: max(several, key=lambda one: one[0])[1] for case, several in best.items()}


def spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly spaced."""
    count = min(most, len(items))
    return [items[place * len(items) // count] for place in range(count)]


def decode_in_turn(
    ways: Sequence[Way],
    cases: Sequence[Case],
    prompts: Sequence[Prompt],
    settings: Settings,
    each: Each,
) -> tuple[dict[Case, list[Decoded]], str | None]:
    """Continue prompts in every way and case, and watch the machine.

    Each round has a share of the prompts, a batch at least, which all ways continue in turn. A load
    that comes or goes then meets all of them, so that the ratio of two ways in one round is fair.

    Returns:
        For each case the results of each way, and a sentence if the times cannot be trusted.
    """
    decoded = {case: [Decoded() for _ in ways] for case in cases}
    turns = list(product(cases, range(ROUNDS), zip(ways, range(len(ways)), strict=True)))
    with Watch() as watch:
        for case, number, (way, place) in each(turns, "Decoding in every way"):
            own = spaced(prompts, max(settings.prompts, ROUNDS * case.batch))
            share = own[number::ROUNDS]
            if number == 0:
                way([share[0].ids], WARM_UP_TOKENS, case, [0])
            first_seed = (settings.seed << 16) + number * len(prompts)
            decoded[case][place].add(way, case, share, settings.tokens, first_seed)
    return decoded, watch.doubt
