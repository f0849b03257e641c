"""`evaluate`: a calibrated drafter and its target, loaded and measured on text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .inputs.documents import Text, first_token, read_documents, window_length
from .inputs.loading import quiet, same_weights
from .inputs.pairs import Pair
from .progress import Stages
from .report.plots import acceptance_figure
from .report.rows import Row, versions, write_evaluation
from .report.table import counted
from .report.written import write_figure
from .request import Evaluation, Setting
from .run import run
from .saved import calibrated_temperature, load_saved
from .stages.pruning import Method
from .stages.stage import DrafterStage, Found, Stage, State

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
    text = Text(documents, length, first_token(models.tokenizer))
    state = State(request, models, text, text, Stages())
    calibrated_for = calibrated_temperature(request.drafter, settings)
    run(state, [Loaded(methods, settings, calibrated_for)], write, None)
    return 0


@dataclass(frozen=True)
class Loaded(DrafterStage[Evaluation]):
    """Makes nothing: a calibrated drafter, what it is compared with, and its settings."""

    name = "loaded"

    methods: Sequence[Method]
    calibrated: dict[str, Any]
    temperature: float

    def run(self, state: State[Evaluation]) -> dict[str, Any]:
        """What was measured."""
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

    def settings(self, state: State[Evaluation], place: int) -> dict[str, Any]:
        return {
            "text": state.held_out.sources,
            "measured": state.made[self.name],
            "calibrated_target": self.same_target(state),
            "versions": versions(),
            "calibration": {**self.calibrated, "figures": None, "target_weights": None},
        }

    def calibrated_for(self, state: State[Evaluation]) -> float:
        return self.temperature

    def same_target(self, state: State[Evaluation]) -> bool | None:
        return same_weights(self.calibrated.get("target_weights"), state.models.target)

    def about_text(self, state: State[Evaluation]) -> str:
        measured = state.made[self.name]
        share = measured["positions"] / measured["positions_given"]
        sentences = [
            f"That is {share:.0%} of the {measured['positions_given']} positions of "
            f"{counted(measured['documents_given'], 'document')} given."
        ]
        if short := measured["documents_too_short"]:
            names = ", ".join(short[:NAMED]) + (", ..." if len(short) > NAMED else "")
            sentences.append(
                f"{len(short)} of them left out, shorter than the {measured['window_length']} "
                f"tokens that are read at once: {names}."
            )
        if others := measured["documents_given"] - measured["documents"] - len(short):
            sentences.append(
                f"{others} more left out for --positions; the default measures in all."
            )
        if (same := self.same_target(state)) is None:
            sentences.append("It was not recorded which target this was calibrated for.")
        elif not same:
            sentences.append(
                "Not the target that this was calibrated for: the weights in "
                f"{state.request.target} are different. The figures are still those of drafting "
                "for it; calibrate for it to do better."
            )
        return " ".join(sentences)


def write(
    state: State[Evaluation],
    stages: Sequence[Stage[Evaluation]],
    found: Sequence[Found],
    rows: Sequence[list[Row]],
) -> str:
    """Write the rows as JSON and CSV, and their picture."""
    (loaded,), every = stages, [row for figures in rows for row in figures]
    path = state.request.output / "evaluation.json"
    table = write_evaluation(every, loaded.settings(state, 0), path)
    picture = path.with_suffix(".png")
    write_figure(acceptance_figure(every, "Held-out text"), picture)
    return f"\n{path}, {table} and {picture} written."
