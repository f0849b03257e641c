"""From two model directories and text files to a calibrated drafter's directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration.material import Material, Options, successor_counts
from rdk_cuda.calibration.methods import (
    PRUNED,
    RECOMMENDED,
    Method,
    Pruning,
)
from rdk_cuda.calibration.reading import read_models
from rdk_cuda.calibration.recording import Recording, record
from rdk_cuda.calibration.windows import cut_windows
from rdk_cuda.integrations.saved_drafter import (
    SavedDrafterError,
    refuse_existing,
    save_drafter,
)
from rdk_cuda.integrations.token_maps import TokenMapError, read_token_map
from rdk_cuda.integrations.tokens import indispensable_tokens

from .calibrate import Request
from .errors import InputError
from .evaluation import evaluate_models
from .evaluation_files import Row
from .evaluation_table import show_rows
from .files import without_nan
from .models import Models, load_models, quiet
from .progress import Stages
from .text import Document, read_documents, window_length
from .versions import versions

HELD_OUT_POSITIONS = 8192
EVERY = 5  # document is held out, if none are given

Documents = Sequence[Document]
Choice = Callable[[Recording], Vocabulary]


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


def calibrate(request: Request) -> int:
    """Calibrate and write the directory; returns the exit code."""
    quiet()
    try:
        refuse_existing(request.output, request.overwrite)
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
    models = load_models(request.target, request.drafter, request.device)
    text = read_text(models, request)
    choose = choice_of_tokens(models, request, text.calibration)
    state = request.output.with_name(f".{request.output.name}.recording")
    with Stages() as stages:
        pruning = prepare(models, request, choose, text, state, stages)
        methods = [
            Method.full(models.drafter_head),
            *(
                rounded(pruning.method(name, request.temperature), models.drafter_dtype)
                for name in stages.each([PRUNED, RECOMMENDED], "Calibrating: offsets")
            ),
        ]
        rows = measure(models, request, methods, text, stages)
    save(models, request, pruning, methods[-1], text, rows)
    state.unlink(missing_ok=True)
    show(request, pruning, methods[-1], text, rows)
    return 0


def rounded(method: Method, dtype: torch.dtype) -> Method:
    """With a head of numbers that `dtype` has: what is measured is what will be written."""
    drafter = method.drafter
    weight = drafter.weight.to(dtype).to(drafter.weight.dtype)
    bias = None if drafter.bias is None else drafter.bias.to(dtype).to(drafter.bias.dtype)
    return replace(method, drafter=replace(drafter, weight=weight, bias=bias))


def show(
    request: Request, pruning: Pruning, method: Method, text: Text, rows: Sequence[Row]
) -> None:
    """The table, and what was chosen."""
    console = Console()
    show_rows(console, rows)
    vocabulary = pruning.vocabulary
    coverage = vocabulary.coverage(pruning.prior(request.temperature))
    said = (
        f"\n{vocabulary.draft_size} of {vocabulary.target_size} tokens are kept, which have "
        f"{coverage:.1%} of the target's mean probability. Chosen: {method.tuned}.\n"
    )
    if text.left_out:
        said += (
            f"{text.left_out} documents were left out, shorter than the {text.calibration_length} "
            f"tokens (held out: {text.held_out_length}) that are read at once.\n"
        )
    said += f"{request.output} written."
    console.print(said, soft_wrap=True, highlight=False, markup=False)


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


def prepare(
    models: Models, request: Request, choose: Choice, text: Text, state: Path, stages: Stages
) -> Pruning:
    """The recording, and all that is built from it. An interrupted one goes on from `state`."""
    ids = [document.ids for document in text.calibration]
    try:
        recording = record(
            read_models(models.target, models.drafter),
            cut_windows(ids, request.positions, text.calibration_length),
            temperatures=(request.temperature,),
            memory=int(request.memory * 2**30),
            context=request.window,
            seed=request.seed,
            state=state,
            models=" and ".join(map(weights_of, (request.target, request.drafter))),
            each=stages.each,
        )
    except ValueError as error:  # NaN, too little memory, a state of other arguments
        raise InputError(str(error)) from error
    counted = stages.each(ids, "Calibrating: counting successors")
    material = Material(recording, models.drafter_head, successor_counts(counted, recording))
    dynamic = min(request.dynamic, models.vocabulary_size)
    options = Options(
        virtual=request.virtual,
        dynamic=dynamic,
        recent=min(Options.recent, dynamic),
        window=request.window,
        seed=request.seed,
    )
    return Pruning(material, choose(recording), options)


def weights_of(directory: Path) -> str:
    """Which weights are in a directory: enough to notice that a model was trained on."""
    files = [file.stat() for file in sorted(directory.glob("*.safetensors"))]
    changed = max((file.st_mtime_ns for file in files), default=0)
    return f"{directory} ({sum(file.st_size for file in files)} bytes of {changed})"


def choice_of_tokens(models: Models, request: Request, documents: Documents) -> Choice:
    """Which tokens to keep, and always what no drafter should lose; refuses before long work."""
    size, always = models.vocabulary_size, indispensable_tokens(models.tokenizer)
    if request.kept is not None:
        ids = ids_of_file(request.kept, size)
        vocabulary = Vocabulary(torch.cat([ids, always[~torch.isin(always, ids)]]), size)
        return lambda recording: vocabulary
    count = max(1, round(request.keep * size))
    if always.numel() > count:
        raise InputError(
            f"--keep {request.keep:g} is {count} tokens, fewer than the {always.numel()} special "
            "tokens and single bytes that are always kept; keep more"
        )

    def choose(recording: Recording) -> Vocabulary:
        scores = {
            "probability": recording.mean_probs_at(request.temperature),
            "frequency": counts_of(documents, size),
            "variance": recording.variance,
        }[request.keep_by]
        return Vocabulary.most_likely(scores, count, always=always)

    return choose


def counts_of(documents: Documents, size: int) -> Tensor:
    """`[V_t]`, how often each token is in the whole text, also where the models do not read it."""
    counts = torch.zeros(size, dtype=torch.int64, device="cpu")
    for document in documents:
        ids = torch.tensor(document.ids, dtype=torch.int64, device="cpu")
        counts += ids.bincount(minlength=size)
    return counts


def ids_of_file(file: Path, size: int) -> Tensor:
    """The target ids of a map: a list as other projects keep it, or an EAGLE-3 checkpoint."""
    try:
        return read_token_map(file, size).draft_ids
    except OSError as error:
        raise InputError(f"--kept {file}: {error.strerror}; needs a readable file") from error
    except TokenMapError as error:
        raise InputError(f"--kept {error}") from error


def measure(
    models: Models, request: Request, methods: list[Method], text: Text, stages: Stages
) -> list[Row]:
    """What the full, the pruned and the calibrated drafter are worth on held-out text."""
    windows = cut_windows(
        [document.ids for document in text.held_out], HELD_OUT_POSITIONS, text.held_out_length
    )
    return evaluate_models(
        models,
        {request.temperature: methods},
        windows,
        draft_length=request.draft_length,
        each=stages.each,
        seed=request.seed,
    )


def save(
    models: Models,
    request: Request,
    pruning: Pruning,
    method: Method,
    text: Text,
    rows: Sequence[Row],
) -> None:
    """Write the directory, in the dtype that the drafter came in."""
    drafter, dynamic, dtype = method.drafter, None, models.drafter_dtype
    bias = None if drafter.bias is None else drafter.bias.to(dtype)
    if drafter.dynamic_tokens is not None:
        options = pruning.options
        dynamic = {
            "width": options.dynamic,
            "recent": options.recent,
            "window": options.window,
            "successors": pruning.successors is not None,
        }
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(request).items()
        if name not in ("output", "overwrite", "text", "held_out")
    }
    settings |= {
        "text": files_of(text.calibration),
        "held_out": files_of(text.held_out),
        "versions": versions(),
        "dynamic_tokens": dynamic,
        "tuned": method.tuned,
        # The times of the models are of this moment and machine: `evaluate` measures them anew.
        "figures": without_nan([{**row, "speed_up": None} for row in rows]),
    }
    try:
        save_drafter(
            request.output,
            models.drafter.to(dtype),
            models.tokenizer,
            replace(drafter, weight=drafter.weight.to(dtype), bias=bias, dynamic_tokens=None),
            settings,
            successors=None if dynamic is None else pruning.successors,
            overwrite=request.overwrite,
        )
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error


def files_of(documents: Documents) -> list[dict[str, str]]:
    """Which files were read."""
    return [{"name": document.name, "sha256": document.sha256} for document in documents]
