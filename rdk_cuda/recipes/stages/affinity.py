"""From a recording to calibrated drafters: the tokens to keep, the methods, the choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...drafter import FullHead
from ...integrations.huggingface.saved_drafter import save_drafter
from ...vocabulary import Vocabulary
from ...vocabulary.indispensable import indispensable_tokens
from ..errors import InputError
from ..recording import Each, Recording, silently, successor_counts
from ..request import Request, Setting
from .kept_tokens import SCORES, kept_tokens, named_tokens
from .pruning import PRUNED, RECOMMENDED, Material, Method, Options, Pruning
from .stage import DrafterStage, Found, State


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A pruned drafter for one setting.

    Attributes:
        plain: without redistribution.
        method: the best of what was tried, `RECOMMENDED`.
        coverage: the share of the target's mean probability that lies on kept tokens.
    """

    setting: Setting
    plain: Method
    method: Method
    coverage: float


def calibrate(
    recording: Recording,
    full_head: FullHead,
    documents: Sequence[Sequence[int]],
    settings: Iterable[Setting],
    *,
    keep_by: str = SCORES[0],
    always: Sequence[int] | Tensor = (),
    kept: Vocabulary | None = None,
    options: Options | None = None,
    dtype: torch.dtype | None = None,
    each: Each = silently,
) -> list[Calibrated]:
    """A calibrated drafter for each setting, from one recording of both models.

    Args:
        recording: of the calibration text, with the temperature of every setting.
        full_head: the drafter's own, `[V_t, d]` and `[V_t]` or None.
        documents: token ids of all calibration text, also what the models did not read.
        keep_by: one of `SCORES`.
        always: target ids that are kept whatever their score (`indispensable_tokens`).
        kept: these tokens, in place of those with the best scores.
        dtype: what the small heads will be saved in. Their numbers are rounded to it, so that what
            is measured is what is saved. None: as in the full head.

    Raises:
        ValueError: a temperature that was not recorded, an unknown score, or a share that has no
            room for `always`.
    """
    settings, drafters = list(settings), []
    for temperature in dict.fromkeys(setting.temperature for setting in settings):
        alone = recording.at(temperature)
        counts = successor_counts(each(documents, "Calibrating: counting successors"), alone)
        material = Material(alone, full_head, counts)
        for setting in settings:
            if setting.temperature != temperature:
                continue
            vocabulary = kept
            if vocabulary is None:
                vocabulary = kept_tokens(alone, documents, setting.keep, keep_by, always)
            pruning = Pruning(material, vocabulary, options)
            plain, method = (
                pruning.method(name, temperature).rounded(dtype)
                for name in each((PRUNED, RECOMMENDED), "Calibrating: offsets")
            )
            coverage = vocabulary.coverage(pruning.mean_probs(temperature))
            drafters.append(Calibrated(setting, plain, method, coverage))
    return drafters


class Affinity(DrafterStage[Request]):
    """A pruned drafter for each setting."""

    name = "affinity"

    def check(self, state: State[Request]) -> None:
        models, request, size = state.models, state.request, state.models.vocabulary_size
        always = indispensable_tokens(models.tokenizer)
        self.always, self.kept = always[always < size], models.kept
        if self.kept is None:
            self.kept = named_tokens(request, size, self.always)
        elif (request.kept, request.keep, request.keep_by) != (None, Request.keep, Request.keep_by):
            raise InputError(
                f"--drafter {request.drafter}: has a head of {self.kept.draft_size} tokens, which "
                "are the ones that are kept; leave out --keep, --keep-by and --kept"
            )
        if self.kept is not None:
            state.request = replace(request, keep=(self.kept.draft_size / size,))

    def run(self, state: State[Request]) -> list[Calibrated]:
        request, models = state.request, state.models
        return calibrate(
            *(state.recording, models.drafter_head, state.text.ids, request.settings),
            keep_by=request.keep_by,
            always=self.always,
            kept=self.kept,
            options=options_of(state),
            dtype=models.drafter_dtype,
            each=state.progress.each,
        )

    def found(self, state: State[Request]) -> list[Found]:
        whole = Method.whole(state.models)
        made: list[Calibrated] = state.made[self.name]
        return [Found(one.setting, one.method, [whole, one.plain, one.method]) for one in made]

    def describe(self, state: State[Request], place: int) -> str:
        one: Calibrated = state.made[self.name][place]
        kept = one.plain.drafter.vocabulary
        return (
            f"\n{kept.draft_size} of {kept.target_size} tokens are kept, which have "
            f"{one.coverage:.1%} of the target's mean probability. Chosen: {one.method.tuned}."
        )

    def settings(self, state: State[Request], place: int) -> dict[str, Any]:
        return {"tuned": state.made[self.name][place].method.tuned}

    def save(self, state: State[Request], place: int, path: Path, settings: dict[str, Any]) -> None:
        models, overwrite = state.models, state.request.overwrite
        drafter = state.made[self.name][place].method.drafter.in_dtype(models.drafter_dtype)
        made = models.saved_drafter, models.tokenizer, replace(drafter, lifted=models.lifted)
        save_drafter(path, *made, settings, overwrite=overwrite)


def options_of(state: State[Request]) -> Options:
    request = state.request
    dynamic = min(request.dynamic, state.models.vocabulary_size)
    return Options(
        dynamic=dynamic,
        recent=max(1, min(Options.recent, dynamic)),
        screen=request.screen_bytes,
        **{name: getattr(request, name) for name in ("virtual", "window", "batch", "seed")},
    )
