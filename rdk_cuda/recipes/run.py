"""A recipe, stage after stage: two models and a text, to drafters with evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from ..drafter import SavedDrafterError
from ..files import without_nan
from ..integrations.huggingface.saved_drafter import refuse_existing, written_whole
from .errors import InputError
from .inputs.documents import Window, calibration_and_held_out
from .inputs.loading import load_pair, quiet, refuse_unsavable, weight_sample
from .inputs.pairs import Pair, TextPair
from .progress import Stages
from .report.rows import TIMED, Row, evaluate, versions
from .report.table import say, show_notes, show_rows
from .request import Request
from .resume import RecordingPlace
from .stages.affinity import Affinity
from .stages.lengths import Drafts
from .stages.lifted import Lifted, described_rows
from .stages.pruning import Method
from .stages.stage import DrafterStage, Found, Stage, State
from .stages.tokenizers import Tokenizers
from .stages.tree import Tree

RECIPES: dict[type[Pair], tuple[type[Stage[Request]], ...]] = {
    TextPair: (Tokenizers,),
    Pair: (Lifted, Affinity, Drafts, Tree),
}
"""The stages for a kind of pair, in order; one of them makes the drafters."""


def run_calibration(request: Request) -> int:
    """Calibrate for each setting and write the directory; returns the exit code."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    place, dtype = RecordingPlace.of(request), getattr(torch, request.dtype)
    paths = request.target, request.drafter
    models = load_pair(*paths, request.device, dtype, request.device_map, one_tokenizer=False)
    refuse_unsavable(models, request.output, copies=len(request.settings))
    text, held_out = calibration_and_held_out(
        models.tokenizer, request.text, request.held_out, models.context, request.draft_length
    )
    recipe = next(stages for kind, stages in RECIPES.items() if isinstance(models, kind))
    stages = [stage() for stage in recipe]
    (last,) = (stage for stage in stages if isinstance(stage, DrafterStage))
    with place.unfinished(), Stages() as progress:
        state = State(request, models, text, held_out, progress.each, progress.say)
        for stage in stages:
            stage.check(state)
        windows = text.windows(request.positions)
        state.recording = place.record(models, state.request, windows, progress)
        for stage in stages:
            state.made[stage.name] = stage.run(state)
        found = last.found(state)
        rows = measured(state, found, progress)
        save(state, stages, last, rows)
    show(state, stages, found, rows)
    say(place.close())
    return 0


def measured(state: State[Request], found: Sequence[Found], progress: Stages) -> list[list[Row]]:
    methods: dict[float, list[Method]] = {}
    for one in found:
        known = methods.setdefault(one.setting.temperature, [])
        known += [method for method in one.compared if method not in known]
    windows, request = state.held_out.held_out_windows(), state.request
    length, seed = request.draft_length, request.seed
    rows = iter(evaluated(state.models, methods, windows, length, seed, progress))
    row_of = {(t, id(method)): next(rows) for t, chosen in methods.items() for method in chosen}
    return [
        [row_of[one.setting.temperature, id(method)] for method in one.compared] for one in found
    ]


def evaluated(
    models: Pair,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    draft_length: int,
    seed: int,
    progress: Stages,
) -> list[Row]:
    times = models.times(windows[0].ids[: -draft_length - 1], draft_length)
    return evaluate(
        models.read(draft_length),
        models.drafter_head,
        methods,
        windows,
        draft_length=draft_length,
        drafts_every=models.drafts_every(draft_length),
        times=times,
        head_dtype=models.drafter_dtype,
        each=progress.each,
        seed=seed,
    )


def save(
    state: State[Request],
    stages: Sequence[Stage[Request]],
    last: DrafterStage,
    rows: Sequence[Sequence[Row]],
) -> None:
    request, found = state.request, last.found(state)
    common = {
        **request.said(),
        "versions": versions(),
        "target_weights": weight_sample(state.models.target),
        "text": state.text.sources,
        "held_out": state.held_out.sources,
    }
    with places(request, len(found)) as place_of:
        for place, (one, figures) in enumerate(zip(found, rows, strict=True)):
            settings = {**common, **one.setting._asdict()}
            for stage in stages:
                settings |= stage.settings(state, place)
            # Times depend on the moment and the machine: `evaluate` measures them again.
            untimed = [{**row, **dict.fromkeys(TIMED)} for row in figures]
            settings["figures"] = without_nan(untimed)
            last.save(state, place, place_of(request.name(one.setting)), settings)


@contextmanager
def places(request: Request, drafters: int) -> Iterator[Callable[[str], Path]]:
    with naming_out():
        if drafters == 1:
            yield lambda name: request.output
        else:
            with written_whole(request.output, request.overwrite) as folder:
                yield lambda name: folder / name


@contextmanager
def naming_out() -> Iterator[None]:
    try:
        yield
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error


def show(
    state: State[Request],
    stages: Sequence[Stage[Request]],
    found: Sequence[Found],
    rows: Sequence[Sequence[Row]],
) -> None:
    console, request, text, held_out = Console(), state.request, state.text, state.held_out
    for place, measured in enumerate(rows):
        show_rows(console, measured)
        for sentence in (stage.describe(state, place) for stage in stages):
            if sentence:
                say(sentence)
    say("")
    if of_rows := described_rows(state.models):
        say(of_rows)
    show_notes(console, [row for measured in rows for row in measured])
    if left_out := len(text.too_short) + len(held_out.too_short):
        say(
            f"{left_out} documents were left out, shorter than the {text.length} tokens (held "
            f"out: {held_out.length}) that are read at once."
        )
    names = [request.name(one.setting) for one in found] if len(found) > 1 else []
    say(f"{request.output} written" + (f", with {', '.join(names)}." if names else "."))
