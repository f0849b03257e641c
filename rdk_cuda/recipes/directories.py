"""A calibrated drafter's directory, or one for each of several, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ..drafter import SavedDrafterError
from ..files import without_nan
from ..integrations.huggingface.placement import weight_sample
from ..integrations.huggingface.saved_drafter import written_whole
from .errors import InputError
from .report.rows import TIMED, Row, versions
from .request import Request
from .stages.stage import DrafterStage, Found, Stage, State


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
    # A stage writes the directory of one drafter whole by itself.
    alone, given = len(found) == 1, (request.output, request.overwrite)
    with naming_out(), nullcontext(request.output) if alone else written_whole(*given) as folder:
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
def naming_out() -> Iterator[None]:
    """Say an error of a directory as one of `--out`."""
    try:
        yield
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
