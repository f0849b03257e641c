"""A recipe, stage after stage: two models and a text, to drafters with evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from ..drafter import SavedDrafterError
from ..files import without_nan
from ..integrations.huggingface.saved_drafter import refuse_existing, written_whole
from .errors import InputError
from .inputs.documents import calibration_and_held_out
from .inputs.loading import quiet, refuse_unsavable, weight_sample
from .inputs.pairs import Pair, TextPair
from .progress import Stages
from .report.rows import TIMED, Row, evaluate, versions
from .report.table import say, show_notes, show_rows
from .request import Request
from .resume import RecordingPlace
from .saved import load_models
from .stages.affinity import Affinity
from .stages.lengths import Drafts
from .stages.lifted import Lifted
from .stages.pruning import Method
from .stages.stage import DrafterStage, Found, Stage, State
from .stages.tokenizers import Tokenizers
from .stages.tree import Tree

RECIPES: dict[type[Pair], tuple[type[Stage[Request]], ...]] = {
    TextPair: (Tokenizers,),
    Pair: (Lifted, Affinity, Drafts, Tree),
}
"""The stages for a kind of pair, in order; one of them makes the drafters."""

Write = Callable[[State[Any], Sequence[Stage[Any]], Sequence[Found], Sequence[list[Row]]], str]
"""Writes what was made and measured; returns what to say of it."""


def run_calibration(request: Request) -> int:
    """Calibrate for each setting and write the directory; returns the exit code."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    place = RecordingPlace.of(request)
    models = load_models(request, request.drafter, one_tokenizer=False)
    refuse_unsavable(models, request.output, copies=len(request.settings))
    text, held_out = calibration_and_held_out(
        models.tokenizer, request.text, request.held_out, models.context, request.draft_length
    )
    state = State(request, models, text, held_out, Stages())
    recipe = next(stages for kind, stages in RECIPES.items() if isinstance(models, kind))
    with place.unfinished():
        run(state, [stage() for stage in recipe], save, place)
    say(place.close())
    return 0


def run(
    state: State[Any], stages: Sequence[Stage[Any]], write: Write, place: RecordingPlace | None
) -> None:
    """Make each stage's artifact, measure the drafters on held-out text, write and show them.

    Args:
        place: of the recording; None where no stage reads one.
    """
    (last,) = (stage for stage in stages if isinstance(stage, DrafterStage))
    with state.progress:
        for stage in stages:
            stage.check(state)
        if place is not None:
            state.recording = place.record(state)
        for stage in stages:
            state.made[stage.name] = stage.run(state)
        found = last.found(state)
        rows = measured(state, found)
        written = write(state, stages, found, rows)
    console = Console()
    for number, figures in enumerate(rows):
        show_rows(console, figures, last.calibrated_for(state))
        for sentence in (stage.describe(state, number) for stage in stages):
            if sentence:
                say(sentence)
    say("")
    for sentence in (stage.summary(state) for stage in stages):
        if sentence:
            say(sentence)
    show_notes(console, [row for figures in rows for row in figures], last.about_text(state))
    say(written)


def measured(state: State[Any], found: Sequence[Found]) -> list[list[Row]]:
    """The rows of each drafter and of what it is compared with, each of which is measured once."""
    methods: dict[float, list[Method]] = {}
    for one in found:
        known = methods.setdefault(one.setting.temperature, [])
        known += [method for method in one.compared if method not in known]
    windows, models, length = state.windows, state.models, state.request.draft_length
    rows = iter(
        evaluate(
            models.read(length),
            models.drafter_head,
            methods,
            windows,
            draft_length=length,
            drafts_every=models.drafts_every(length),
            times=models.times(windows[0].ids[: -length - 1], length),
            head_dtype=models.drafter_dtype,
            each=state.each,
            seed=state.request.seed,
        )
    )
    row_of = {(t, id(method)): next(rows) for t, chosen in methods.items() for method in chosen}
    return [
        [row_of[one.setting.temperature, id(method)] for method in one.compared] for one in found
    ]


def save(
    state: State[Request],
    stages: Sequence[Stage[Request]],
    found: Sequence[Found],
    rows: Sequence[list[Row]],
) -> str:
    """Write a directory for each drafter, atomically all together."""
    request, text, held_out = state.request, state.text, state.held_out
    (last,) = (stage for stage in stages if isinstance(stage, DrafterStage))
    common = {
        **request.said(),
        "versions": versions(),
        "target_weights": weight_sample(state.models.target),
        "text": text.sources,
        "held_out": held_out.sources,
    }
    names = [request.name(one.setting) for one in found] if len(found) > 1 else [""]
    with folder_of(request, len(found)) as folder:
        for place, (one, name) in enumerate(zip(found, names, strict=True)):
            settings = {**common, **one.setting._asdict()}
            for stage in stages:
                settings |= stage.settings(state, place)
            # Times depend on the moment and the machine: `evaluate` measures them again.
            untimed = [{**row, **dict.fromkeys(TIMED)} for row in rows[place]]
            settings["figures"] = without_nan(untimed)
            last.save(state, place, folder / name, settings)
    said = f"{request.output} written"
    if left_out := len(text.too_short) + len(held_out.too_short):
        said = (
            f"{left_out} documents were left out, shorter than the {text.length} tokens (held "
            f"out: {held_out.length}) that are read at once.\n{said}"
        )
    return f"{said}, with {', '.join(names)}." if len(found) > 1 else f"{said}."


@contextmanager
def folder_of(request: Request, drafters: int) -> Iterator[Path]:
    """One drafter is the output itself, of several each is a folder in it."""
    with naming_out():
        if drafters == 1:
            yield request.output
        else:
            with written_whole(request.output, request.overwrite) as folder:
                yield folder


@contextmanager
def naming_out() -> Iterator[None]:
    try:
        yield
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
