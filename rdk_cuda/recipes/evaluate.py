"""`evaluate`: a calibrated drafter and its target, loaded and measured on text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from .inputs.documents import Text, Window, first_token, read_documents, window_length
from .inputs.loading import quiet, same_weights
from .inputs.pairs import Pair
from .progress import Stages
from .report.plots import acceptance_figure
from .report.rows import versions, write_evaluation
from .report.table import counted, say, show_notes, show_rows
from .report.written import write_figure
from .request import Evaluation
from .run import evaluated
from .saved import calibrated_temperature, load_saved
from .stages.pruning import Method

NAMED = 3  # documents, of those that were left out


def run_evaluation(request: Evaluation) -> int:
    """Measure, print and write; returns the exit code."""
    quiet()
    return report(request, *load_saved(request))


def report(
    request: Evaluation, models: Pair, methods: Sequence[Method], settings: dict[str, Any]
) -> int:
    """Measure what was loaded, print and write; returns the exit code."""
    documents = read_documents(models.tokenizer, request.text)
    length = window_length(documents, models.context, request.draft_length)
    text = Text(documents, length, first_token(models.tokenizer))
    windows = text.held_out_windows(request.positions)
    calibrated_for = calibrated_temperature(request.drafter, settings)
    with Stages() as stages:
        rows = evaluated(
            models,
            dict.fromkeys(request.temperature or [calibrated_for], methods),
            windows,
            request.draft_length,
            request.seed,
            stages,
        )
    console = Console()
    measured = what_was_measured(text, windows)
    same_target = same_weights(settings.get("target_weights"), models.target)
    about_text = " ".join([*left_out(measured), *other_target(same_target, request.target)])
    show_rows(console, rows, calibrated_for)
    console.print()
    show_notes(console, rows, about_text)
    path = request.output / "evaluation.json"
    about = {
        "text": text.sources,
        "measured": measured,
        "calibrated_target": same_target,
        "versions": versions(),
        "calibration": {**settings, "figures": None, "target_weights": None},
    }
    table = write_evaluation(rows, about, path)
    picture = path.with_suffix(".png")
    write_figure(acceptance_figure(rows, "Held-out text"), picture)
    say(f"\n{path}, {table} and {picture} written.")
    return 0


def what_was_measured(text: Text, windows: Sequence[Window]) -> dict[str, Any]:
    return {
        "positions": text.length * len(windows),
        "positions_given": sum(map(len, text.ids)),
        "windows": len(windows),
        "window_length": text.length,
        "documents": len({window.document for window in windows}),
        "documents_given": len(text.documents),
        "documents_too_short": text.too_short,
    }


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
    others = measured["documents_given"] - measured["documents"] - len(short)
    if others:
        sentences.append(f"{others} more left out for --positions; the default measures in all.")
    return sentences


def other_target(same: bool | None, target: Path) -> list[str]:
    if same is None:
        return ["It was not recorded which target this was calibrated for."]
    if same:
        return []
    return [
        f"Not the target that this was calibrated for: the weights in {target} are different. The "
        "figures are still those of drafting for it; calibrate for it to do better."
    ]
