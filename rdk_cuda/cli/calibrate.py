"""`calibrate`, step by step: from two models and text to directories of calibrated drafters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.filesize import decimal

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import (
    BONUSES,
    Calibrated,
    CalibratedLength,
    Method,
    Options,
    Setting,
    calibrate,
)
from rdk_cuda.calibration.reading import Window
from rdk_cuda.calibration.record import record
from rdk_cuda.calibration.recording import Recording
from rdk_cuda.calibration.recording_file import (
    OtherRecordingError,
    RecordingError,
    recorded_temperatures,
)
from rdk_cuda.decoding.lengths import described
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.integrations.huggingface.saved_drafter import (
    refuse_existing,
    save_drafter,
    written_whole,
)
from rdk_cuda.integrations.token_maps import TokenMapError, read_token_map
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

from ..evaluation.rows import TIMED, Row
from ..evaluation.table import show_notes, show_rows
from ..files import without_nan
from ..pair.documents import Text, calibration_and_held_out
from ..pair.errors import InputError
from ..pair.loading import load_pair, quiet, weight_sample
from ..pair.model_files import weight_files
from ..pair.pairs import Pair
from ..pair.text_pair import TextPair
from .calibrate_text import choose, measure_methods, refuse_pruning, save_chosen, show_chosen
from .evaluate import evaluate_pair, versions
from .progress import Stages
from .request import Request


def run_calibration(request: Request, stages: Stages | None = None) -> int:
    """Calibrate for each setting and write the directory; returns the exit code.

    Args:
        stages: shows the progress. None: as the command does.
    """
    quiet()
    try:
        refuse_existing(request.output, request.overwrite)
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error
    file = RecordingFile.of(request)
    dtype = getattr(torch, request.dtype)
    models = load_pair(
        request.target,
        request.drafter,
        request.device,
        dtype,
        request.device_map,
        one_tokenizer=False,
    )
    text, held_out = calibration_and_held_out(
        models.tokenizer, request.text, request.held_out, models.context, request.draft_length
    )
    windows = text.windows(request.positions)
    if isinstance(models, TextPair):
        return calibrate_text(models, request, file, windows, text, held_out, stages)
    always = indispensable_tokens(models.tokenizer)
    kept = models.kept
    if kept is None:
        kept = named_tokens(request, models.vocabulary_size, always)
    else:
        request = keeping_own(request, kept)
    try:
        with stages or Stages() as stages:
            recording = file.record(models, request, windows, stages)
            if models.kept is not None:
                for given in stages.each([recording], "Calibrating: lifting rows"):
                    models = models.with_rows(given, stages.each)
            drafters = calibrate(
                recording,
                models.drafter_head,
                text.ids,
                request.settings,
                keep_by=request.keep_by,
                always=always,
                kept=kept,
                options=options_of(models, request),
                dtype=models.drafter_dtype,
                draft_cost=request.draft_cost,
                each=stages.each,
            )
            rows = measure(models, request, drafters, held_out, stages)
        save(models, request, drafters, rows, text, held_out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*file.kept) from None
    show(models, request, drafters, rows, text, held_out)
    say(file.close())
    return 0


def calibrate_text(
    models: TextPair,
    request: Request,
    file: RecordingFile,
    windows: list[Window],
    text: Text,
    held_out: Text,
    stages: Stages | None,
) -> int:
    """The same for a drafter with another tokenizer."""
    refuse_pruning(request)
    try:
        with stages or Stages() as stages:
            recording = file.record(models, request, windows, stages)
            chosen = choose(models, request, recording, text, stages)
            rows = measure_methods(models, request, chosen, held_out, stages)
        settings = [
            {
                **common_settings(models, request, one.setting, measured),
                **{"method": one.method.name, "common": one.common},
                **{"text": text.sources, "held_out": held_out.sources},
            }
            for one, measured in zip(chosen, rows, strict=True)
        ]
        save_chosen(models, request, chosen, settings)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*file.kept) from None
    show_chosen(chosen, rows, request)
    say(file.close())
    return 0


def named_tokens(request: Request, size: int, always: torch.Tensor) -> Vocabulary | None:
    """The tokens of `--kept` and those that are always kept; refuses before long work.

    Without `--kept` None, once each `--keep` was found to have room for the latter.
    """
    if request.kept is None:
        for keep in request.keep:
            if (count := max(1, round(keep * size))) < always.numel():
                raise InputError(
                    f"--keep {keep:g} is {count} tokens, fewer than the {always.numel()} special "
                    "tokens and single bytes that are always kept; keep more"
                )
        return None
    try:
        ids = read_token_map(request.kept, size).draft_ids
    except OSError as error:
        reason = f"{error.strerror}; needs a readable file"
        raise InputError(f"--kept {request.kept}: {reason}") from error
    except TokenMapError as error:
        raise InputError(f"--kept {error}") from error
    return Vocabulary(torch.cat([ids, always[~torch.isin(always, ids)]]), size)


def keeping_own(request: Request, kept: Vocabulary) -> Request:
    """The request for a drafter that has a small head already, and keeps its tokens."""
    if request.kept is not None or request.keep != Request.keep:
        raise InputError(
            f"--drafter {request.drafter}: has a head of {kept.draft_size} tokens, which are the "
            "ones that are kept; leave out --keep and --kept"
        )
    return replace(request, keep=(kept.draft_size / kept.target_size,))


OPTIONS = {
    "text": "the text (--text, --held-out, --positions)",
    "models": "the pair, or how it reads (--target, --drafter, --dtype, --draft-length)",
    "context": "--window",
    "samples": "the number of samples (--memory)",
    "seed": "--seed",
}
"""What the settings of a recording are on the command line."""


@dataclass(frozen=True)
class RecordingFile:
    """Where the models' view of the text is kept.

    Attributes:
        named: the user gave it a name, so that it stays when all is done.
        temperatures: those that it has or will have; at least those asked for.
    """

    path: Path
    named: bool
    temperatures: tuple[float, ...]

    @classmethod
    def of(cls, request: Request) -> RecordingFile:
        """The file that a request is for."""
        output, asked = request.output, tuple(dict.fromkeys(request.temperature))
        named = request.recording is not None
        path = output.with_name(f"{output.name}.recording.tmp")
        path = path if request.recording is None else Path(os.path.abspath(request.recording))
        file = cls(path, named, asked)
        if path.is_relative_to(output):
            raise InputError(
                f"{file}: is in --out {output}, which is written when all is done; name a file "
                "somewhere else"
            )
        if not path.parent.is_dir():
            raise InputError(f"{file}: {path.parent} is no directory; make it first")
        if not os.path.lexists(path):
            return file
        if not path.is_file():
            raise InputError(f"{file}: is not a regular file; {file.otherwise}")
        try:
            recorded = recorded_temperatures(path)
        except RecordingError as error:
            option = "--recording " if named else ""
            raise InputError(f"{option}{error.reason}; {file.otherwise}") from error
        if not set(asked) <= set(recorded):
            raise InputError(
                f"{file}: has the text at --temperature {in_words(recorded)}, not at "
                f"{in_words(t for t in asked if t not in recorded)}; give some of these, or "
                f"{file.otherwise}"
            )
        return cls(path, named, recorded)

    def __str__(self) -> str:
        return f"--recording {self.path}" if self.named else str(self.path)

    @property
    def otherwise(self) -> str:
        """What to do where this file is of no use."""
        return "name another file" if self.named else "move or delete it to begin anew"

    @property
    def size(self) -> str:
        """For example `1.1 GB`."""
        return decimal(self.path.stat().st_size)

    def record(
        self, models: Pair, request: Request, windows: list[Window], stages: Stages
    ) -> Recording:
        """What the models say of the windows; where it was interrupted, it goes on."""
        stages.console.print(self.announcement(request.memory), soft_wrap=True, highlight=False)
        try:
            return record(
                models.read(request.draft_length),
                windows,
                temperatures=self.temperatures,
                memory=int(request.memory * 2**30),
                context=request.window,
                seed=request.seed,
                state=self.path,
                models=models_of(models, request),
                each=stages.each,
            )
        except OtherRecordingError as error:
            different = "; ".join(
                f"{OPTIONS.get(name, name)} was {was!r} and is {now!r}"
                for name, (was, now) in error.different.items()
            )
            raise InputError(
                f"{self}: is of another run: {different}. Give the same to go on, or "
                f"{self.otherwise}"
            ) from error
        except ValueError as error:  # NaN, too little memory, an altered file
            raise InputError(str(error).removeprefix("record: ")) from error

    def announcement(self, memory: float) -> str:
        """Where it is, how large, and for how long."""
        size = f"{self.size} of it so far" if self.path.exists() else f"at most {memory:g} GiB"
        until = "kept" if self.named else "removed when all is done"
        return f"Calibrating: recording in {self.path}, {size}, {until} ..."

    @property
    def kept(self) -> tuple[str, ...]:
        """A sentence for an interrupted run, if there is anything to go on from."""
        if not self.path.exists():
            return ()
        return (f"{self.path} ({self.size}) has what was read; the same command goes on from it.",)

    def close(self) -> str:
        """Remove it unless it has a name; says what became of it."""
        size = self.size
        if self.named:
            return (
                f"{self.path} ({size}) kept: with --recording and the same models and text, other "
                "shares need no further reading."
            )
        self.path.unlink()
        return f"{self.path} ({size}) removed; --recording FILE keeps it for other settings."


def in_words(temperatures: Iterable[float]) -> str:
    """As on the command line."""
    return " ".join(f"{temperature:g}" for temperature in temperatures)


def models_of(models: Pair, request: Request) -> str:
    """Which models they are, and how they read."""
    said = " and ".join(map(weights_of, (request.target, request.drafter)))
    if request.dtype != Request.dtype:
        said += f" in {request.dtype}"
    return said + models.how_read(request.draft_length)


def weights_of(directory: Path) -> str:
    """Which weights a model has: enough to notice that it was trained on."""
    files = [file.stat() for file in weight_files(directory)]
    changed = max((file.st_mtime_ns for file in files), default=0)
    return f"{directory.resolve()} ({sum(file.st_size for file in files)} bytes of {changed})"


def options_of(models: Pair, request: Request) -> Options:
    """How large the drafters may be."""
    dynamic = min(request.dynamic, models.vocabulary_size)
    return Options(
        virtual=request.virtual,
        dynamic=dynamic,
        recent=max(1, min(Options.recent, dynamic)),
        window=request.window,
        bonuses=() if models.lifted is None else BONUSES,
        screen=request.screen_bytes,
        batch=request.batch,
        seed=request.seed,
    )


def measure(
    models: Pair,
    request: Request,
    drafters: Sequence[Calibrated],
    held_out: Text,
    stages: Stages,
) -> list[list[Row]]:
    """The rows of each drafter: the full, the pruned and the calibrated one on held-out text."""
    methods: dict[float, list[Method]] = {}
    for one in drafters:
        chosen = methods.setdefault(one.setting.temperature, [models.whole])
        chosen += [one.plain, one.method]
    rows = evaluate_pair(
        models,
        methods,
        held_out.held_out_windows(),
        request.draft_length,
        request.seed,
        stages,
    )
    grouped = []
    for chosen in methods.values():
        full, *others = (rows.pop(0) for _ in chosen)
        grouped += [[full, *others[first : first + 2]] for first in range(0, len(others), 2)]
    return grouped


def save(
    models: Pair,
    request: Request,
    drafters: Sequence[Calibrated],
    rows: Sequence[Sequence[Row]],
    text: Text,
    held_out: Text,
) -> None:
    """Write the drafter's directory or, for several settings, a directory of them."""
    several = len(drafters) > 1
    place = written_whole(request.output, request.overwrite) if several else nullcontext()
    dtype = models.drafter_dtype
    sources = {"text": text.sources, "held_out": held_out.sources}
    try:
        with place as folder:
            for one, measured in zip(drafters, rows, strict=True):
                save_drafter(
                    request.output if folder is None else folder / request.name(one.setting),
                    models.saved_drafter,
                    models.tokenizer,
                    replace(one.method.drafter.in_dtype(dtype), lifted=models.lifted),
                    {**settings_of(models, request, one, measured), **sources},
                    overwrite=request.overwrite,
                )
    except SavedDrafterError as error:
        raise InputError(f"--out {error.reason}") from error


def settings_of(
    models: Pair, request: Request, one: Calibrated, rows: Sequence[Row]
) -> dict[str, Any]:
    """What `calibration.json` says of a pruned drafter."""
    found = {
        "tuned": one.method.tuned,
        "drafts": drafts_of(one.length),
        "tree": None if one.tree is None else one.tree._asdict(),
    }
    return common_settings(models, request, one.setting, rows) | found


def common_settings(
    models: Pair, request: Request, setting: Setting, rows: Sequence[Row]
) -> dict[str, Any]:
    """What `calibration.json` says of any drafter."""
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(request).items()
        if name not in ("output", "overwrite", "recording", "text", "held_out")
    }
    return settings | {
        "keep": setting.keep,
        "temperature": setting.temperature,
        "versions": versions(),
        "target_weights": weight_sample(models.target),
        # Times depend on the moment and the machine: `evaluate` measures them again.
        "figures": without_nan([{**row, **dict.fromkeys(TIMED)} for row in rows]),
    }


def drafts_of(found: CalibratedLength | None) -> dict[str, Any] | None:
    """How many tokens are drafted and when a draft ends, as `Generate.from_directory` reads it."""
    if found is None:
        return None
    rule = None if found.length is None else described(found.length)
    return {"length": rule, "draft_length": found.draft_length, "gain": found.gain}


def show(
    models: Pair,
    request: Request,
    drafters: Sequence[Calibrated],
    rows: Sequence[Sequence[Row]],
    text: Text,
    held_out: Text,
) -> None:
    """A table for each drafter, what was chosen, and what was written."""
    console = Console()
    for one, measured in zip(drafters, rows, strict=True):
        show_rows(console, measured)
        kept = one.plain.drafter.vocabulary
        say(
            f"\n{kept.draft_size} of {kept.target_size} tokens are kept, which have "
            f"{one.coverage:.1%} of the target's mean probability. Chosen: {one.method.tuned}."
        )
        if one.length is not None and (tree := one.tree) is not None:
            say(
                f"Expected at this cost of a pass: chains of {one.length.draft_length} at most "
                f"{one.length.speed:.2f} × the target's speed; trees of {tree.nodes} nodes in "
                f"{tree.passes} passes {tree.speed:.2f} ×, {tree.accepted:.2f} accepted."
            )
    say("")
    if models.rows:
        say(models.rows)
    show_notes(console, [row for measured in rows for row in measured])
    if left_out := len(text.too_short) + len(held_out.too_short):
        say(
            f"{left_out} documents were left out, shorter than the {text.length} tokens (held "
            f"out: {held_out.length}) that are read at once."
        )
    names = [request.name(one.setting) for one in drafters] if len(drafters) > 1 else []
    say(f"{request.output} written" + (f", with {', '.join(names)}." if names else "."))


def say(words: str) -> None:
    """Print words as they are."""
    Console().print(words, soft_wrap=True, highlight=False, markup=False)
