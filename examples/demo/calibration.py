"""Calibration of the drafters, and the methods that the demo compares."""

from collections.abc import Sequence

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import Material, Options, successor_counts
from rdk_cuda.labs.tuned_rdk import FIRST_ORDER, tuned_rdk
from rdk_cuda.recipes.inputs.documents import Window, encode
from rdk_cuda.recipes.inputs.pairs import Pair
from rdk_cuda.recipes.record import record
from rdk_cuda.recipes.recording import Each
from rdk_cuda.recipes.stages.lifted import with_lifted_rows
from rdk_cuda.recipes.stages.pruning import (
    DYNAMIC,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Method,
    Pruning,
)

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
    head = with_lifted_rows(pair, recording).drafter_head
    return Material(recording, head, successor_counts(documents, recording))


def build_methods(
    material: Material, settings: Settings, each: Each
) -> tuple[list[Method], list[Method]]:
    """Each drafter that is compared.

    Returns:
        The full one, then `SHOWN` for each share of the vocabulary kept; and at temperature 0 and
        the smallest vocabulary the pruned one, and as recommended.
    """
    methods, greedy = [Method.full(material.full_head)], []
    wanted = [(keep, name) for keep in settings.keep for name in SHOWN]
    for keep, name in each(wanted, "Calibrating: clusters and affinities"):
        if name == SHOWN[0]:
            pruning = pruned_to(keep, material, settings)
        if name == FIRST_ORDER:
            method = tuned_rdk(pruning, name, settings.temperature)
        else:
            method = pruning.method(name, settings.temperature)
        methods.append(Method(name, keep, method.drafter, method.tuned))
        if keep == settings.keep[-1] and name in (PRUNED, RECOMMENDED):
            greedy.append(pruning.method(name, 0.0))
    return methods, greedy


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
