"""A recipe, stage after stage: artifacts, and the drafters that one of them makes, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .report.evaluation import evaluate
from .report.rows import Row
from .stages.pruning import Method
from .stages.stage import DrafterStage, Found, Stage, State


def run(state: State[Any], stages: Sequence[Stage[Any]]) -> tuple[Sequence[Found], list[list[Row]]]:
    """Make each stage's artifact, and measure the drafters on held-out text."""
    for stage in stages:
        state.made[stage.name] = stage.run(state)
    (last,) = (stage for stage in stages if isinstance(stage, DrafterStage))
    found = last.found(state)
    return found, measured(state, found)


def measured(state: State[Any], found: Sequence[Found]) -> list[list[Row]]:
    """The rows of each drafter and of what it is compared with, each of which is measured once."""
    methods: dict[float, list[Method]] = {}
    for one in found:
        known = methods.setdefault(one.setting.temperature, [])
        known += [method for method in one.compared if method not in known]
    models, length = state.models, state.request.draft_length
    windows = state.windows
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
            each=state.progress.each,
            seed=state.request.seed,
        )
    )
    row_of = {(t, id(method)): next(rows) for t, chosen in methods.items() for method in chosen}
    return [
        [row_of[one.setting.temperature, id(method)] for method in one.compared] for one in found
    ]
