"""From two model directories and text files to calibrated drafters' directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rdk_cuda import SuccessorTable, Vocabulary
from rdk_cuda.calibration.material import Material, Options, successor_counts
from rdk_cuda.calibration.methods import (
    PRUNED,
    RECOMMENDED,
    Method,
    Pruning,
)
from rdk_cuda.calibration.recording.windows import cut_windows
from rdk_cuda.integrations.huggingface.saved_directory import (
    SavedDrafterError,
    refuse_existing,
    written_whole,
)
from rdk_cuda.integrations.huggingface.saved_drafter import save_drafter

from ..evaluation.rows import TIMED, Row
from ..evaluation.table import show_notes, show_rows
from ..files import without_nan
from .documents import (
    HELD_OUT_POSITIONS,
    Document,
    positions_of_all,
    read_documents,
    window_length,
)
from .errors import InputError
from .kept_tokens import Choice, choice_of_tokens
from .models import (
    Models,
    evaluate_pair,
    load_models,
    quiet,
    weight_sample,
)
from .progress import Stages
from .recorded_text import RecordingFile
from .request import Request, Setting
from .versions import versions

EVERY = 5  # document is held out, if none are given

Documents = Sequence[Document]


@dataclass(frozen=True)
class Text:
    """What is calibrated on and what is measured on, and how many tokens are read at once."""

    calibration: Documents
    held_out: Documents
    calibration_length: int
    held_out_length: int

    @property
    def left_out(self) -> int:
        """How many documents are shorter than what is read at once."""
        return sum(
            len(document.ids) < length
            for documents, length in (
                (self.calibration, self.calibration_length),
                (self.held_out, self.held_out_length),
            )
            for document in documents
        )


@dataclass(frozen=True)
class Calibrated:
    """A pruned drafter for one of the settings.

    Attributes:
        plain, method: without redistribution, and calibrated.
        coverage: what the target gives to the kept tokens, on average.
        successors: the table of its dynamic tokens, if there is one.
    """

    setting: Setting
    plain: Method
    method: Method
    coverage: float
    successors: SuccessorTable | None
    options: Options

    @property
    def vocabulary(self) -> Vocabulary:
        """The kept tokens."""
        return self.plain.drafter.vocabulary


def calibrate(request: Request) -> int:
    """Calibrate for each setting and write the directory; returns the exit code."""
    quiet()
    try:
        refuse_existing(request.output, request.overwrite)
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
    file = RecordingFile.of(request)
    models = load_models(request.target, request.drafter, request.device)
    text = read_text(models, request)
    choices = {
        setting: choice_of_tokens(models, request, setting.keep, text.calibration)
        for setting in request.settings
    }
    try:
        with Stages() as stages:
            drafters = build(models, request, choices, text, file, stages)
            rows = measure(models, request, drafters, text, stages)
        save(models, request, drafters, text, rows)
    except KeyboardInterrupt:
        file.interrupted()
        raise
    show(request, drafters, text, rows, file.close())
    return 0


def build(
    models: Models,
    request: Request,
    choices: Mapping[Setting, Choice],
    text: Text,
    file: RecordingFile,
    stages: Stages,
) -> list[Calibrated]:
    """What is calibrated for each setting, from one reading of the text."""
    ids = [document.ids for document in text.calibration]
    windows = cut_windows(ids, request.positions, text.calibration_length)
    recording = file.record(models, request, windows, stages)
    drafters = []
    for temperature in dict.fromkeys(request.temperature):
        alone = recording.at(temperature)
        counted = stages.each(ids, "Calibrating: counting successors")
        material = Material(alone, models.drafter_head, successor_counts(counted, alone))
        for setting, choose in choices.items():
            if setting.temperature == temperature:
                pruning = Pruning(material, choose(alone), options_of(models, request))
                drafters.append(calibrated(pruning, setting, models.drafter_dtype, stages))
    return drafters


def options_of(models: Models, request: Request) -> Options:
    """How large the drafters may be."""
    dynamic = min(request.dynamic, models.vocabulary_size)
    return Options(
        virtual=request.virtual,
        dynamic=dynamic,
        recent=min(Options.recent, dynamic),
        window=request.window,
        seed=request.seed,
    )


def calibrated(
    pruning: Pruning, setting: Setting, dtype: torch.dtype, stages: Stages
) -> Calibrated:
    """One pruning, with a head of numbers that `dtype` has."""
    plain, method = (
        rounded(pruning.method(name, setting.temperature), dtype)
        for name in stages.each([PRUNED, RECOMMENDED], "Calibrating: offsets")
    )
    return Calibrated(
        setting,
        plain,
        method,
        pruning.vocabulary.coverage(pruning.mean_probs(setting.temperature)),
        None if method.drafter.dynamic_tokens is None else pruning.successors,
        pruning.options,
    )


def rounded(method: Method, dtype: torch.dtype) -> Method:
    """With a head of numbers that `dtype` has: what is measured is what will be written."""
    drafter = method.drafter
    weight = drafter.weight.to(dtype).to(drafter.weight.dtype)
    bias = None if drafter.bias is None else drafter.bias.to(dtype).to(drafter.bias.dtype)
    return replace(method, drafter=replace(drafter, weight=weight, bias=bias))


def read_text(models: Models, request: Request) -> Text:
    """Calibration and held-out documents, none in both."""
    calibration: Documents = read_documents(models.tokenizer, request.text)
    option = "--held-out" if request.held_out else "--text"
    if request.held_out:
        held_out: Documents = read_documents(models.tokenizer, request.held_out, option)
    else:
        calibration, held_out = hold_out(calibration)
    refuse_common(calibration, held_out, option)
    context, draft_length = models.context, request.draft_length
    return Text(
        calibration,
        held_out,
        window_length(calibration, context, draft_length),
        window_length(held_out, context, draft_length, option),
    )


def hold_out(documents: Documents) -> tuple[Documents, Documents]:
    """The documents without every fifth, and those; of fewer than five the last is held out."""
    if len(documents) < 2:
        raise InputError(
            "--text is one document, so nothing can be held out of it to measure on; give more "
            "files, or some with --held-out"
        )
    every = min(EVERY, len(documents))
    calibration = [document for place, document in enumerate(documents, 1) if place % every]
    return calibration, documents[every - 1 :: every]


def refuse_common(calibration: Documents, held_out: Documents, option: str) -> None:
    """A measurement on what was calibrated on would say too much."""
    known = {document.sha256 for document in calibration}
    for document in held_out:
        if document.sha256 in known:
            raise InputError(
                f"{option} {document.name}: is held out to measure on, and its content is also "
                "calibrated on; give each text once"
            )


def measure(
    models: Models, request: Request, drafters: Sequence[Calibrated], text: Text, stages: Stages
) -> list[list[Row]]:
    """For each, what the full, the pruned and the calibrated drafter are worth on held-out text."""
    length = text.held_out_length
    positions = positions_of_all(text.held_out, length, HELD_OUT_POSITIONS)
    windows = cut_windows([document.ids for document in text.held_out], positions, length)
    methods: dict[float, list[Method]] = {}
    for one in drafters:
        chosen = methods.setdefault(one.setting.temperature, [Method.full(models.drafter_head)])
        chosen += [one.plain, one.method]
    rows = evaluate_pair(
        models,
        methods,
        windows,
        draft_length=request.draft_length,
        each=stages.each,
        seed=request.seed,
    )
    grouped = []
    for chosen in methods.values():
        full, *others = (rows.pop(0) for _ in chosen)
        grouped += [[full, *others[first : first + 2]] for first in range(0, len(others), 2)]
    return grouped


def save(
    models: Models,
    request: Request,
    drafters: Sequence[Calibrated],
    text: Text,
    rows: Sequence[Sequence[Row]],
) -> None:
    """Write the directory: the drafter, in the dtype that it came in, or one for each setting."""
    several = len(drafters) > 1
    place = written_whole(request.output, request.overwrite) if several else nullcontext()
    try:
        with place as folder:
            for one, measured in zip(drafters, rows, strict=True):
                output = request.output if folder is None else folder / request.name(one.setting)
                save_one(
                    models, request, one, output, settings_of(models, request, one, text, measured)
                )
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error


def save_one(
    models: Models, request: Request, one: Calibrated, output: Path, settings: Mapping[str, Any]
) -> None:
    """Write a drafter's directory: the same files for the same request."""
    drafter, dtype = one.method.drafter, models.drafter_dtype
    bias = None if drafter.bias is None else drafter.bias.to(dtype)
    save_drafter(
        output,
        models.drafter.to(dtype),
        models.tokenizer,
        replace(drafter, weight=drafter.weight.to(dtype), bias=bias, dynamic_tokens=None),
        settings,
        successors=one.successors,
        overwrite=request.overwrite,
    )


def settings_of(
    models: Models, request: Request, one: Calibrated, text: Text, rows: Sequence[Row]
) -> dict[str, Any]:
    """What `calibration.json` says."""
    dynamic = None
    if one.method.drafter.dynamic_tokens is not None:
        options = one.options
        dynamic = {
            "width": options.dynamic,
            "recent": options.recent,
            "window": options.window,
            "successors": one.successors is not None,
        }
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(request).items()
        if name not in ("output", "overwrite", "recording", "text", "held_out")
    }
    return settings | {
        "keep": one.setting.keep,
        "temperature": one.setting.temperature,
        "text": files_of(text.calibration),
        "held_out": files_of(text.held_out),
        "versions": versions(),
        "target_weights": weight_sample(models.target),
        "dynamic_tokens": dynamic,
        "tuned": one.method.tuned,
        # The times of the models are of this moment and machine: `evaluate` measures them anew.
        "figures": without_nan([{**row, **dict.fromkeys(TIMED)} for row in rows]),
    }


def files_of(documents: Documents) -> list[dict[str, str]]:
    """Which files were read."""
    return [{"name": document.name, "sha256": document.sha256} for document in documents]


def show(
    request: Request,
    drafters: Sequence[Calibrated],
    text: Text,
    rows: Sequence[Sequence[Row]],
    recording: str,
) -> None:
    """A table for each, what was chosen, and what was written."""
    console = Console()

    def say(words: str) -> None:
        console.print(words, soft_wrap=True, highlight=False, markup=False)

    for one, measured in zip(drafters, rows, strict=True):
        show_rows(console, measured)
        kept = one.vocabulary
        say(
            f"\n{kept.draft_size} of {kept.target_size} tokens are kept, which have "
            f"{one.coverage:.1%} of the target's mean probability. Chosen: {one.method.tuned}."
        )
    console.print()
    show_notes(console, [row for measured in rows for row in measured])
    if text.left_out:
        say(
            f"{text.left_out} documents were left out, shorter than the {text.calibration_length} "
            f"tokens (held out: {text.held_out_length}) that are read at once."
        )
    names = [request.name(one.setting) for one in drafters] if len(drafters) > 1 else []
    say(f"{request.output} written" + (f", with {', '.join(names)}." if names else "."))
    say(recording)
