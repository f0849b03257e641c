"""`calibrate`: two models and a text become drafters with evidence, in a directory."""

from __future__ import annotations

from ..integrations.huggingface.saved_drafter import refuse_existing
from .directories import naming_out, save
from .inputs.loading import load_models, quiet, refuse_unsavable
from .inputs.pairs import Pair, TextPair
from .report.table import say, show
from .request import Request
from .resume import RecordingPlace
from .run import run
from .stages.affinity import Affinity
from .stages.lengths import Drafts
from .stages.lifted import Lifted
from .stages.stage import Stage, State
from .stages.tokenizers import Tokenizers

RECIPES: dict[type[Pair], tuple[type[Stage[Request]], ...]] = {
    TextPair: (Tokenizers,),
    Pair: (Lifted, Affinity, Drafts),
}
"""The stages for a kind of pair, in order; one of them makes the drafters."""


def run_calibration(request: Request) -> int:
    """Calibrate for each setting and write the directory; returns the exit code."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    place = RecordingPlace.of(request)
    models = load_models(request, request.drafter, one_tokenizer=False)
    refuse_unsavable(models, request.output, copies=len(request.settings))
    state = State.of(request, models)
    recipe = next(stages for kind, stages in RECIPES.items() if isinstance(models, kind))
    stages = [stage() for stage in recipe]
    with place.unfinished():
        with state.progress:
            for stage in stages:
                stage.check(state)
            state.recording = place.record(state)
            found, rows = run(state, stages)
        written = save(state, stages, found, rows)
    show(state, stages, rows)
    say(written)
    say(place.close())
    return 0
