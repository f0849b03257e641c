"""Calibration of the drafters, and the methods that the demo compares."""

from collections.abc import Iterable, Sequence

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import Material, Options, successor_counts
from rdk_cuda.calibration.methods import (
    DYNAMIC,
    FIRST_ORDER,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Method,
    Pruning,
)
from rdk_cuda.calibration.reading import Window
from rdk_cuda.calibration.record import record
from rdk_cuda.calibration.recording import Each
from rdk_cuda.pair.documents import encode
from rdk_cuda.pair.pairs import Pair

from .arguments import Settings
from .corpus import read_text, training_files

SHOWN = (PRUNED, FIRST_ORDER, DYNAMIC, VIRTUAL, RECOMMENDED)


def calibrate(pair: Pair, windows: Sequence[Window], settings: Settings, each: Each) -> Material:
    """Read calibration text with both models; count successors in all of the training text."""
    recording = record(
        pair.read(settings.draft_lengths[-1]),
        windows,
        temperatures=(settings.temperature,),
        context=settings.window,
        seed=settings.seed,
        each=each,
    )
    files = each(training_files(), "Calibrating: counting successors")
    documents = (encode(pair.tokenizer, read_text(file)) for file in files)
    return Material(recording, pair.drafter_head, successor_counts(documents, recording))


def build_methods(material: Material, keeps: Iterable[float], settings: Settings) -> list[Method]:
    """The full drafter, then `SHOWN` for each share of the vocabulary kept."""
    methods = [Method.full(material.full_head)]
    for keep in keeps:
        pruning = pruned_to(keep, material, settings)
        for name in SHOWN:
            method = pruning.method(name, settings.temperature)
            methods.append(Method(name, keep, method.drafter, method.tuned))
    return methods


def greedy_methods(material: Material, settings: Settings) -> list[Method]:
    """At temperature 0 and the smallest vocabulary: pruned, and as recommended."""
    pruning = pruned_to(settings.keep[-1], material, settings)
    return [pruning.method(name, 0.0) for name in (PRUNED, RECOMMENDED)]


def pruned_to(keep: float, material: Material, settings: Settings) -> Pruning:
    """To the target's likeliest tokens."""
    mean_probs = material.recording.mean_probs_at(settings.temperature)
    options = Options(
        virtual=settings.virtual,
        dynamic=settings.dynamic,
        recent=min(settings.dynamic, Options.recent),
        window=settings.window,
        seed=settings.seed,
    )
    count = max(1, round(keep * mean_probs.numel()))
    return Pruning(material, Vocabulary.most_likely(mean_probs, count), options)
