"""What the drafters are calibrated on, and how each gets its head and its affinity."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.calibration import cluster_pruned_tokens, prune_head
from rdk_cuda.calibration.acceptance import measure_acceptance
from rdk_cuda.calibration.drafter import PrunedDrafter
from rdk_cuda.calibration.reading import read_models
from rdk_cuda.calibration.windows import Window
from rdk_cuda.commands.models import Models

from .arguments import Settings
from .methods import DYNAMIC, FIRST_ORDER, FULL, PRUNED, VIRTUAL, VIRTUAL_DYNAMIC, Method

# What is tried on a few windows of the calibration text: temperatures of the first-order affinity
# (far below, its uniform part is gone, far above, its mean probabilities), and what is added to the
# logits of virtual tokens, which Jensen's bound leaves too low; -inf, which turns them off, is for
# text on which they hurt.
TAUS = (1e-4, 1e-6, 1e-8, 1e-10)
OFFSETS = (-math.inf, 0.0, 0.25, 0.5, 1.0, 1.5)
TUNING_WINDOWS = 3


@dataclass(frozen=True)
class Calibration:
    """Means over the positions of the calibration text.

    Attributes:
        mean_probs: `[V]` float64, of the target's probabilities.
        second_moment: `[d, d]` float64, of the drafter's last hidden state.
    """

    mean_probs: Tensor
    second_moment: Tensor
    positions: int


@torch.no_grad()
def calibrate(models: Models, windows: Iterable[Window]) -> Calibration:
    """Read the calibration text once with both models."""
    width = models.drafter.get_output_embeddings().weight.shape[1]
    probs = torch.zeros(models.vocabulary_size, dtype=torch.float64)
    moment = torch.zeros(width, width, dtype=torch.float64)
    positions = 0
    for window in windows:
        ids = torch.tensor([window.ids])
        probs += models.target(ids).logits[0].float().softmax(-1).sum(0)
        hidden = models.drafter.base_model(ids).last_hidden_state[0]
        moment += hidden.T @ hidden
        positions += len(window.ids)
    return Calibration(probs / positions, moment / positions, positions)


def build_methods(
    models: Models,
    calibration: Calibration,
    windows: Sequence[Window],
    keeps: Iterable[float],
    settings: Settings,
) -> list[Method]:
    """The full drafter, then five drafters for each share of the vocabulary kept."""
    full = models.drafter_head
    size = models.vocabulary_size
    everything = Vocabulary.identity(size)
    whole = PrunedDrafter(everything, Affinity.intersection(everything), *full)
    methods = [Method(FULL, 1.0, whole)]
    some = windows[:: max(1, len(windows) // TUNING_WINDOWS)][:TUNING_WINDOWS]
    for keep in keeps:
        vocabulary = Vocabulary.most_likely(calibration.mean_probs, max(1, round(keep * size)))
        pruned = prune_head(*full, vocabulary)
        drafter = PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), *pruned)
        plain = Method(PRUNED, keep, drafter)
        recent = RecentTokens(vocabulary, settings.dynamic, settings.window)
        virtual = virtual_methods(plain, full, calibration, settings)
        candidates = [
            plain,
            *first_order_methods(plain, calibration),
            *(with_dynamic_tokens(one, recent) for one in (plain, *virtual)),
            *virtual,
        ]
        methods += best_of_each_name(models, candidates, some, settings.temperature)
    return methods


def best_of_each_name(
    models: Models, candidates: Sequence[Method], windows: Sequence[Window], temperature: float
) -> list[Method]:
    """Of the candidates with one name the one that is accepted most, of equals the first."""
    drafters = {temperature: [method.drafter for method in candidates]}
    read = read_models(models.target, models.drafter)
    rates = measure_acceptance(read, models.drafter_head, drafters, windows)[temperature]
    best: dict[str, tuple[float, Method]] = {}
    for rate, method in zip(rates.mean((1, 2)).tolist(), candidates, strict=True):
        if method.name not in best or rate > best[method.name][0]:
            best[method.name] = rate, method
    order = (PRUNED, FIRST_ORDER, DYNAMIC, VIRTUAL, VIRTUAL_DYNAMIC)
    return sorted((method for _, method in best.values()), key=lambda m: order.index(m.name))


def with_dynamic_tokens(method: Method, source: RecentTokens) -> Method:
    """The same drafter with dynamic tokens."""
    name = {PRUNED: DYNAMIC, VIRTUAL: VIRTUAL_DYNAMIC}[method.name]
    return replace(method, name=name, drafter=replace(method.drafter, dynamic_tokens=source))


def first_order_methods(plain: Method, calibration: Calibration) -> list[Method]:
    """The paper's first-order affinity on a pruned head, for every tau."""
    return [
        replace(
            plain,
            name=FIRST_ORDER,
            drafter=replace(
                plain.drafter,
                affinity=Affinity.first_order(
                    plain.drafter.vocabulary, calibration.mean_probs, tau
                ),
            ),
            tuned=tau,
        )
        for tau in TAUS
    ]


def virtual_methods(
    plain: Method, full: tuple[Tensor, Tensor | None], calibration: Calibration, settings: Settings
) -> list[Method]:
    """A pruned head with virtual tokens for the rest, for every offset."""
    vocabulary, prior = plain.drafter.vocabulary, calibration.mean_probs
    temperature = settings.temperature
    clusters = cluster_pruned_tokens(
        full[0],
        vocabulary,
        prior,
        min(settings.virtual, vocabulary.pruned.numel()),
        hidden_second_moment=calibration.second_moment,
        seed=settings.seed,
    )
    affinities = [
        Affinity.virtual_tokens(vocabulary, clusters, prior, temperature=temperature, offset=offset)
        for offset in OFFSETS
    ]
    # The first offset is -inf, and what is off has no row.
    head = prune_head(*full, vocabulary, virtual=affinities[-1])
    return [
        Method(VIRTUAL, plain.keep, PrunedDrafter(vocabulary, affinity, *head), tuned=offset)
        for affinity, offset in zip(affinities, OFFSETS, strict=True)
    ]
