"""Every way to prune a drafter, built from one recording of both models (DESIGN section 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter
from ...dynamic_tokens import (
    CombinedTokens,
    DynamicTokens,
    SuccessorCounts,
    SuccessorTable,
    recent_and_successors,
    screens_of,
)
from ...vocabulary import Vocabulary
from ..choose import hurts, tune
from ..inputs.pairs import Pair
from ..recording import Recording, Samples
from .clusters import cluster_pruned_tokens
from .screen import screens_within
from .virtual import calibrate_offset, virtual_drafter, with_offset

FULL, LIFTED, PRUNED = "full drafter", "lifted head", "pruned drafter"
DYNAMIC, VIRTUAL = "dynamic tokens", "virtual tokens"
RECOMMENDED = "virtual+dynamic"


@dataclass(frozen=True)
class Options:
    """How large drafters may be, and how much is looked at to build them.

    Attributes:
        virtual: K, the most virtual tokens.
        dynamic: C, the most dynamic columns of a row; 0 for none at all, and then for no screen.
        recent, window: how many of those are reserved for tokens of the context, and how many of
            its last tokens these are taken from.
        samples: how many samples candidates are compared on.
        screen, batch: the share of the bytes of the pruned rows that a screen may read, 0 for none,
            and for how many positions at once it is read.
    """

    virtual: int = 64
    dynamic: int = 128
    recent: int = 32
    window: int = 256
    samples: int = 2048
    screen: float = 0.0
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("virtual", "recent", "window", "samples", "batch", "dynamic"):
            if (value := getattr(self, name)) < (least := int(name != "dynamic")):
                raise ValueError(f"Options: {name} is {value}; needs at least {least}")
        if not 0 <= self.screen <= 1:
            raise ValueError(f"Options: screen is {self.screen}; needs a share from 0 to 1")
        if self.screen and not self.dynamic:
            raise ValueError(
                f"Options: screen is {self.screen} and dynamic is 0; needs screen 0, since what it "
                "offers are dynamic tokens"
            )


@dataclass(frozen=True, eq=False)
class Material:
    """The base of all prunings; without counts, dynamic tokens include no successors."""

    recording: Recording
    full_head: FullHead
    counts: SuccessorCounts | None = None


@dataclass(frozen=True, eq=False)
class Method:
    """A drafter and how it was made.

    Attributes:
        name: one of `BUILDERS`, or FULL, or LIFTED: with lifted rows in place of those pruned.
        keep: the share of the vocabulary that its head keeps.
        tuned: what was chosen on the calibration text, in words; empty if nothing was.
    """

    name: str
    keep: float
    drafter: PrunedDrafter
    tuned: str = ""

    @classmethod
    def full(cls, full_head: FullHead) -> Method:
        """Draft with the full head, `FullHead` of `rdk_cuda.drafter`."""
        everything = Vocabulary.identity(full_head[0].shape[0])
        drafter = PrunedDrafter(everything, Affinity.intersection(everything), *full_head)
        return cls(FULL, 1.0, drafter)

    @classmethod
    def whole(cls, models: Pair) -> Method:
        """Draft with all that a pair's drafter has: its full head, or its lifted rows."""
        full = cls.full(models.drafter_head)
        return full if models.lifted is None else replace(full, name=LIFTED)

    def rounded(self, dtype: torch.dtype | None) -> Method:
        """The same with a head of numbers that `dtype` has, in the dtype that it had."""
        if dtype is None:
            return self
        drafter = self.drafter
        return replace(self, drafter=drafter.in_dtype(dtype).in_dtype(drafter.weight.dtype))


class Pruning:
    """The methods for one kept vocabulary, at any recorded temperature and at 0."""

    def __init__(
        self, material: Material, vocabulary: Vocabulary, options: Options | None = None
    ) -> None:
        size = material.recording.counts.numel()
        if vocabulary.target_size != size or material.full_head[0].shape[0] != size:
            raise ValueError(
                f"Pruning: the recording has {size} target tokens, the vocabulary "
                f"{vocabulary.target_size} and the full head {material.full_head[0].shape[0]} "
                "rows; needs one number"
            )
        self.material, self.vocabulary = material, vocabulary
        self.options = Options() if options is None else options
        self.full_head = material.full_head
        self._sources: dict[float, DynamicTokens] = {}
        self._built: dict[tuple[str, float], Built] = {}

    @property
    def keep(self) -> float:
        """The share of the target's tokens that are kept."""
        return self.vocabulary.draft_size / self.vocabulary.target_size

    def method(self, name: str, temperature: float) -> Method:
        """One of `BUILDERS`, calibrated for a recorded temperature, or for 0.

        A greedy method is calibrated for the lowest one, and is used only if it does not hurt.
        """
        if name not in BUILDERS:
            raise ValueError(f"Pruning.method: got {name!r}; needs one of {', '.join(BUILDERS)}")
        if temperature == 0:
            return Method(name, self.keep, *self._greedy(name))
        self.mean_probs(temperature)  # refuses one that was not recorded
        return Method(name, self.keep, *self._build(name, temperature))

    def _build(self, name: str, temperature: float) -> Built:
        if (name, temperature) not in self._built:
            self._built[name, temperature] = BUILDERS[name](self, temperature)
        return self._built[name, temperature]

    def _greedy(self, name: str) -> Built:
        lowest = min(self.material.recording.temperatures)
        drafter, tuned = self._build(name, lowest)
        candidates = [(tuned, drafter)]
        if drafter.dynamic_tokens is not None:
            without_virtual = replace(self.plain, dynamic_tokens=drafter.dynamic_tokens)
            candidates.append(("virtual tokens off when greedy", without_virtual))
        candidates.append(("off when greedy", self.plain))
        best = tune(candidates, self.samples, self.full_head, 0.0)
        return best.drafter, best.label

    @cached_property
    def samples(self) -> Samples:
        return self.material.recording.samples.spaced(self.options.samples)

    @cached_property
    def plain(self) -> PrunedDrafter:
        return PrunedDrafter.plain(self.full_head, self.vocabulary)

    @cached_property
    def clusters(self) -> Tensor:
        """`[V_t]`, the cluster of each pruned token; -1 for kept ones."""
        recording = self.material.recording
        return cluster_pruned_tokens(
            self.full_head[0],
            self.vocabulary,
            recording.mean_probs[0],
            min(self.options.virtual, self.vocabulary.pruned.numel()),
            hidden_second_moment=recording.hidden_second_moment,
            seed=self.options.seed,
        )

    @cached_property
    def dynamic_tokens(self) -> CombinedTokens:
        given, vocabulary, successors = self.options, self.vocabulary, None
        if self.material.counts is not None:
            width = min(given.dynamic, vocabulary.target_size)
            successors = SuccessorTable.from_counts(self.material.counts, vocabulary, width)
        sizes = {"width": given.dynamic, "recent": given.recent, "window": given.window}
        return recent_and_successors(vocabulary, successors, **sizes)

    def source(self, temperature: float) -> DynamicTokens:
        """`dynamic_tokens`, and of the screens within `Options.screen` the best, if one helps."""
        if temperature not in self._sources:
            self._sources[temperature] = self._best_source(temperature)
        return self._sources[temperature]

    def _best_source(self, temperature: float) -> DynamicTokens:
        share, named = self.options.screen, self.dynamic_tokens
        if not share > 0 or not self.pruned_mass(temperature) > 0:
            return named
        screens = screens_within(
            share,
            self.full_head,
            self.vocabulary,
            self.material.recording.hidden_second_moment,
            self.mean_probs(temperature),
            batch=self.options.batch,
        )

        def candidates() -> Iterator[tuple[DynamicTokens, PrunedDrafter]]:
            yield named, replace(self.plain, dynamic_tokens=named)
            for screen in screens:
                width = min(named.width + screen.width, self.vocabulary.target_size)
                both = CombinedTokens([named, screen], self.vocabulary, width)
                yield both, replace(self.plain, dynamic_tokens=both)

        return tune(candidates(), self.samples, self.full_head, temperature).label

    def mean_probs(self, temperature: float) -> Tensor:
        """`[V_t]`, the target's mean probabilities."""
        return self.material.recording.mean_probs_at(temperature)

    def pruned_mass(self, temperature: float) -> float:
        """Sum the target's mass on pruned tokens; 0 also if its probabilities underflow."""
        return float(self.mean_probs(temperature)[self.vocabulary.pruned].sum())

    def virtual(self, temperature: float, *, dynamic: bool) -> PrunedDrafter:
        """Virtual tokens with a calibrated offset; `plain` if they are better off."""
        first = self.material.recording.temperatures[0]  # the one that clusters are weighted at
        if not min(self.pruned_mass(first), self.pruned_mass(temperature)) > 0:
            return self.plain
        drafter = virtual_drafter(
            self.full_head,
            self.vocabulary,
            self.clusters,
            self.mean_probs(temperature),
            dynamic_tokens=self.source(temperature) if dynamic else None,
        )
        offset = calibrate_offset(
            self.material.recording.samples, drafter, self.full_head, temperature
        )
        return self.plain if offset == -math.inf else with_offset(drafter, offset)


Built = tuple[PrunedDrafter, str]
Build = Callable[[Pruning, float], Built]


def _dynamic(pruning: Pruning, temperature: float) -> Built:
    if not pruning.options.dynamic:
        return pruning.plain, ""
    source = pruning.source(temperature)
    return replace(pruning.plain, dynamic_tokens=source), screened(source)


def _virtual(pruning: Pruning, temperature: float) -> Built:
    drafter = pruning.virtual(temperature, dynamic=False)
    return drafter, "off" if drafter is pruning.plain else described(drafter)


def _recommended(pruning: Pruning, temperature: float) -> Built:
    """Virtual and dynamic tokens together, each only if it helps.

    Dynamic tokens that hurt on their own are dropped first, since virtual tokens may help without
    them. They must hurt by more than chance, because their logits are the drafter's own: on 1,536
    positions of text that the target knew (demo models, T = 0.7, 25 % kept) they seemed to cost
    0.0001 +- 0.0002, while on other text they gain 0.004.
    """
    full_head = pruning.full_head
    with_dynamic = _dynamic(pruning, temperature)[0]
    dynamic = with_dynamic is not pruning.plain and not hurts(
        with_dynamic, pruning.plain, pruning.samples, full_head, temperature
    )
    screen = screened(with_dynamic.dynamic_tokens) if dynamic else ""
    suffix = f", {screen}" if screen else ""
    alone = (f"virtual tokens off{suffix}", with_dynamic) if dynamic else ("off", pruning.plain)
    prefix = "" if dynamic else "dynamic tokens off, "

    candidates, virtual = [alone], pruning.virtual(temperature, dynamic=dynamic)
    if virtual is not pruning.plain:
        candidates.append((prefix + described(virtual) + suffix, virtual))
    best = tune(candidates, pruning.samples, full_head, temperature)
    return best.drafter, best.label


def described(drafter: PrunedDrafter) -> str:
    bias = drafter.affinity.bias[drafter.vocabulary.draft_size :]
    on = int((bias > -math.inf).sum())
    return f"{on} of {bias.numel()} virtual tokens"


def screened(source: object) -> str:
    """The screens of a source in words, as `512 screened tokens at rank 16`."""
    return ", ".join(
        f"{screen.width} screened tokens at rank {screen.rank}" for screen in screens_of(source)
    )


BUILDERS: dict[str, Build] = {
    PRUNED: lambda pruning, temperature: (pruning.plain, ""),
    DYNAMIC: _dynamic,
    VIRTUAL: _virtual,
    RECOMMENDED: _recommended,
}
"""How each method is built."""
