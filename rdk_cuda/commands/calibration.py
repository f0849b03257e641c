"""From two model directories and text files to a calibrated drafter's directory."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rdk_cuda import Vocabulary
from rdk_cuda.calibration.methods import (
    PRUNED,
    RECOMMENDED,
    Material,
    Method,
    Options,
    Pruning,
    successor_counts,
)
from rdk_cuda.calibration.reading import read_models
from rdk_cuda.calibration.recording import Recording, RecordingError, record
from rdk_cuda.calibration.windows import cut_windows
from rdk_cuda.calibration.worth import measure_model_times
from rdk_cuda.integrations.saved_drafter import SavedDrafterError, save_drafter
from rdk_cuda.integrations.tokens import indispensable_tokens

from .calibrate import Request
from .errors import InputError
from .evaluation import evaluate
from .evaluation_files import Row
from .evaluation_table import show_rows
from .models import Models, load_models, quiet
from .progress import Stages
from .text import read_documents

WINDOW = 512  # tokens that are read at once, unless the models' context is shorter
HELD_OUT_POSITIONS = 8192
EVERY = 5  # document is held out, if none are given

Documents = list[list[int]]


def calibrate(request: Request) -> int:
    """Calibrate and write the directory; returns the exit code."""
    quiet()
    models = load_models(request.target, request.drafter, request.device)
    documents, held_out = split_text(models, request)
    length = min(WINDOW, models.context, longest(documents), longest(held_out))
    with Stages() as stages:
        pruning, state = prepare(models, request, documents, length, stages)
        methods = [
            Method.full(models.drafter_head),
            *(
                pruning.method(name, request.temperature)
                for name in stages.each([PRUNED, RECOMMENDED], "Calibrating: offsets")
            ),
        ]
        rows = measure(models, request, methods, held_out, length, stages)
    save(models, request, pruning, methods[-1], rows)
    state.unlink(missing_ok=True)
    console = Console()
    show_rows(console, rows)
    vocabulary = pruning.vocabulary
    coverage = vocabulary.coverage(pruning.prior(request.temperature))
    console.print(
        f"\n{vocabulary.draft_size} of {vocabulary.target_size} tokens are kept, which have "
        f"{coverage:.1%} of the target's mean probability. Chosen: {methods[-1].tuned}.\n"
        f"{request.output} written.",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return 0


def split_text(models: Models, request: Request) -> tuple[Documents, Documents]:
    """Calibration and held-out documents, none in both."""
    documents = read_documents(models.tokenizer, request.text, "--text")
    if request.held_out:
        return documents, read_documents(models.tokenizer, request.held_out, "--held-out")
    if len(documents) < 2:
        raise InputError(
            "--text is one document, so nothing can be held out of it to measure on; give more "
            "files, or some with --held-out"
        )
    held_out = documents[EVERY - 1 :: EVERY] or documents[-1:]
    calibration = [d for place, d in enumerate(documents) if place % EVERY != EVERY - 1]
    return calibration if documents[EVERY - 1 :: EVERY] else documents[:-1], held_out


def longest(documents: Documents) -> int:
    """The length of the longest document."""
    return max(map(len, documents))


def prepare(
    models: Models, request: Request, documents: Documents, length: int, stages: Stages
) -> tuple[Pruning, Path]:
    """The recording, and all that is built from it; with the file of its state."""
    state = request.output.with_name(f".{request.output.name}.recording")
    windows = cut_windows(documents, request.positions, length)
    try:
        recording = record(
            read_models(models.target, models.drafter),
            windows,
            temperatures=(request.temperature,),
            memory=int(request.memory * 2**30),
            context=request.window,
            seed=request.seed,
            state=state,
            models=" ".join(models.names),
            each=stages.each,
        )
    except RecordingError as error:
        raise InputError(f"{error}; delete {state} to read the text anew") from error
    except ValueError as error:  # NaN, too little memory
        raise InputError(str(error)) from error
    counted = stages.each(documents, "Calibrating: counting successors")
    material = Material(recording, models.drafter_head, successor_counts(counted, recording))
    options = Options(
        virtual=request.virtual,
        dynamic=request.dynamic,
        recent=min(Options.recent, request.dynamic),
        window=request.window,
        seed=request.seed,
    )
    return Pruning(material, kept_tokens(models, request, recording), options), state


def kept_tokens(models: Models, request: Request, recording: Recording) -> Vocabulary:
    """By a score, and always what no drafter should lose; or those of a file."""
    size = models.vocabulary_size
    if request.kept is not None:
        return vocabulary_of_file(request.kept, size)
    scores = {
        "probability": recording.mean_probs_at(request.temperature),
        "frequency": recording.counts.double(),
        "variance": recording.variance,
    }[request.keep_by]
    always = indispensable_tokens(models.tokenizer)
    count = max(1, round(request.keep * size))
    if always.numel() > count:
        raise InputError(
            f"--keep {request.keep:g} is {count} tokens, fewer than the {always.numel()} special "
            "tokens and single bytes that are always kept; keep more"
        )
    return Vocabulary.most_likely(scores, count, always=always)


def vocabulary_of_file(file: Path, size: int) -> Vocabulary:
    """The target ids in a text file, one a line."""
    try:
        ids = [int(line) for line in file.read_text(encoding="utf-8").split()]
        return Vocabulary(ids, size)
    except OSError as error:
        raise InputError(f"--kept {file}: {error.strerror}; needs a readable file") from error
    except ValueError as error:  # no numbers, not UTF-8, ids out of range or twice
        raise InputError(f"--kept {file}: {error}; needs target ids, one a line") from error


def measure(
    models: Models,
    request: Request,
    methods: list[Method],
    held_out: Documents,
    length: int,
    stages: Stages,
) -> list[Row]:
    """What the full, the pruned and the calibrated drafter are worth on held-out text."""
    windows = cut_windows(held_out, HELD_OUT_POSITIONS, length)
    context = torch.tensor(windows[0].ids[: length - request.draft_length - 1])
    draft_length = min(request.draft_length, length - 2)
    times = measure_model_times(models.target, models.drafter, context, draft_length)
    return evaluate(
        read_models(models.target, models.drafter),
        models.drafter_head,
        {request.temperature: methods},
        windows,
        draft_length=draft_length,
        times=times,
        each=stages.each,
        seed=request.seed,
    )


def save(
    models: Models, request: Request, pruning: Pruning, method: Method, rows: list[Row]
) -> None:
    """Write the directory."""
    drafter, dynamic = method.drafter, None
    if drafter.dynamic_tokens is not None:
        options = pruning.options
        dynamic = {
            "width": options.dynamic,
            "recent": options.recent,
            "window": options.window,
        }
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(request).items()
        if name not in ("output", "overwrite", "text", "held_out")
    }
    settings |= {"dynamic_tokens": dynamic, "tuned": method.tuned, "figures": rows}
    try:
        save_drafter(
            request.output,
            models.drafter,
            models.tokenizer,
            replace(drafter, dynamic_tokens=None),
            settings,
            successors=None if dynamic is None else pruning.successors,
            overwrite=request.overwrite,
        )
    except SavedDrafterError as error:
        raise InputError(str(error)) from error
