"""`evaluate`: a calibrated drafter and its target, loaded and measured on text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..integrations.huggingface.placement import same_weights
from .inputs.documents import Text, first_token, read_documents, window_length
from .inputs.loading import quiet
from .inputs.pairs import Pair
from .progress import Stages
from .report.plots import acceptance_figure
from .report.rows import versions, write_evaluation
from .report.table import counted, say, show
from .report.written import write_figure
from .request import Evaluation, Setting
from .run import run
from .saved import calibrated_temperature, load_saved
from .stages.pruning import Method
from .stages.stage import DrafterStage, Found, State

NAMED = 3  # documents, of those that were left out


def run_evaluation(request: Evaluation) -> int:
    """Measure, print and write; returns the exit code."""
    quiet()
    return report(request, *load_saved(request))


def report(
    request: Evaluation, models: Pair, methods: Sequence[Method], settings: dict[str, Any]
) -> int:
    """Run with what was loaded as the only stage; returns the exit code."""
    documents = read_documents(models.tokenizer, request.text)
    length = window_length(documents, models.context, request.draft_length)
    text = Text(documents, length, first_token(models.tokenizer), request.positions)
    state = State(request, models, text, text, Stages())
    stages = [Loaded(methods, calibrated_temperature(request.drafter, settings))]
    with state.progress:
        figures = run(state, stages)[1]
    rows = [row for each in figures for row in each]
    same_target = same_weights(settings.get("target_weights"), models.target)
    about = {
        "text": text.sources,
        "measured": state.made[Loaded.name],
        "calibrated_target": same_target,
        "versions": versions(),
        "calibration": {**settings, "figures": None, "target_weights": None},
    }
    about_text = " ".join([*left_out(about["measured"]), *other_target(same_target, request)])
    show(state, stages, figures, stages[0].temperature, about_text)
    path = request.output / "evaluation.json"
    table, picture = write_evaluation(rows, about, path), path.with_suffix(".png")
    write_figure(acceptance_figure(rows, "Held-out text"), picture)
    say(f"\n{path}, {table} and {picture} written.")
    return 0


@dataclass(frozen=True)
class Loaded(DrafterStage[Evaluation]):
    """Makes nothing: a calibrated drafter after what it is compared with, and its temperature."""

    name = "what was measured"

    methods: Sequence[Method]
    temperature: float

    def run(self, state: State[Evaluation]) -> dict[str, Any]:
        text, windows = state.held_out, state.windows
        return {
            "positions": text.length * len(windows),
            "positions_given": sum(map(len, text.ids)),
            "windows": len(windows),
            "window_length": text.length,
            "documents": len({window.document for window in windows}),
            "documents_given": len(text.documents),
            "documents_too_short": text.too_short,
        }

    def found(self, state: State[Evaluation]) -> list[Found]:
        best, temperatures = self.methods[-1], state.request.temperature or [self.temperature]
        return [
            Found(Setting(best.keep, temperature), best, self.methods)
            for temperature in dict.fromkeys(temperatures)
        ]


def left_out(measured: Mapping[str, Any]) -> list[str]:
    share = measured["positions"] / measured["positions_given"]
    sentences = [
        f"That is {share:.0%} of the {measured['positions_given']} positions of "
        f"{counted(measured['documents_given'], 'document')} given."
    ]
    if short := measured["documents_too_short"]:
        names = ", ".join(short[:NAMED]) + (", ..." if len(short) > NAMED else "")
        sentences.append(
            f"{len(short)} of them left out, shorter than the {measured['window_length']} tokens "
            f"that are read at once: {names}."
        )
    if others := measured["documents_given"] - measured["documents"] - len(short):
        sentences.append(f"{others} more left out for --positions; the default measures in all.")
    return sentences


def other_target(same: bool | None, request: Evaluation) -> list[str]:
    if same is None:
        return ["It was not recorded which target this was calibrated for."]
    if same:
        return []
    return [
        f"Not the target that this was calibrated for: the weights in {request.target} are "
        "different. The figures are still those of drafting for it; calibrate for it to do better."
    ]
