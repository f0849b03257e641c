"""`calibrate`, step by step: from two models and text to directories of calibrated drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

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
from rdk_cuda.calibration.lengths import LEAST_SAMPLES
from rdk_cuda.calibration.reading import Window
from rdk_cuda.decoding.lengths import described
from rdk_cuda.integrations.huggingface.saved_drafter import (
    refuse_existing,
    save_drafter,
)
from rdk_cuda.integrations.huggingface.text_drafter import save_text_drafter
from rdk_cuda.integrations.token_maps import TokenMapError, read_token_map
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

from ..evaluation.rows import TIMED, Row
from ..evaluation.table import show_notes, show_rows
from ..files import without_nan
from ..pair.documents import Text, calibration_and_held_out
from ..pair.errors import InputError
from ..pair.loading import load_pair, quiet, refuse_unsavable, weight_sample
from ..pair.pairs import Pair
from ..pair.text_pair import TextPair
from .calibrate_text import choose, refuse_pruning, show_chosen
from .evaluate import evaluate_pair, versions
from .progress import Stages
from .recording_file import RecordingFile
from .request import Request, naming_out, plain


def run_calibration(request: Request) -> int:
    """Calibrate for each setting and write the directory; returns the exit code."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
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
    refuse_unsavable(models, request.output)
    text, held_out = calibration_and_held_out(
        models.tokenizer, request.text, request.held_out, models.context, request.draft_length
    )
    windows = text.windows(request.positions)
    if isinstance(models, TextPair):
        return calibrate_text(models, request, file, windows, text, held_out)
    samples = sum(len(window.ids) - 1 for window in windows)  # a drafter may not read the first
    if request.draft_cost is not None and samples < LEAST_SAMPLES:
        raise InputError(
            f"--draft-cost: {samples} positions of the text cannot tell when drafts should end; "
            f"needs {LEAST_SAMPLES}: give more text, or more --positions"
        )
    always = indispensable_tokens(models.tokenizer)
    always = always[always < models.vocabulary_size]
    kept = models.kept
    if kept is None:
        kept = named_tokens(request, models.vocabulary_size, always)
        if kept is not None:
            request = replace(request, keep=(kept.draft_size / kept.target_size,))
    else:
        request = keeping_own(request, kept)
    with file.unfinished(), Stages() as stages:
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
) -> int:
    """The same for a drafter with another tokenizer."""
    refuse_pruning(request)
    with file.unfinished(), Stages() as stages:
        recording = file.record(models, request, windows, stages)
        chosen = choose(models, request, recording, text, stages)
        methods = {one.setting.temperature: one.methods for one in chosen}
        rows = measured(models, request, methods, held_out, stages)
        with request.places(len(chosen)) as place:
            for one, figures in zip(chosen, rows, strict=True):
                save_text_drafter(
                    place(f"temperature-{plain(one.setting.temperature)}"),
                    models.saved_drafter,
                    models.drafter_tokenizer,
                    models.tokenizer,
                    one.method.drafter.affinity,
                    {
                        **common_settings(models, request, one.setting, figures),
                        **{"method": one.method.name, "common": one.common},
                        **{"text": text.sources, "held_out": held_out.sources},
                    },
                    overwrite=request.overwrite,
                )
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
        ids = read_token_map(request.kept, size, mask_repeats=True).draft_ids
    except OSError as error:
        reason = f"{error.strerror}; needs a readable file"
        raise InputError(f"--kept {request.kept}: {reason}") from error
    except TokenMapError as error:
        raise InputError(f"--kept {error}") from error
    return Vocabulary(torch.cat([ids[ids >= 0], always[~torch.isin(always, ids)]]), size)


def keeping_own(request: Request, kept: Vocabulary) -> Request:
    """The request for a drafter that has a small head already, and keeps its tokens."""
    asked = request.kept, request.keep, request.keep_by
    if asked != (None, Request.keep, Request.keep_by):
        raise InputError(
            f"--drafter {request.drafter}: has a head of {kept.draft_size} tokens, which are the "
            "ones that are kept; leave out --keep, --keep-by and --kept"
        )
    return replace(request, keep=(kept.draft_size / kept.target_size,))


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
    return [
        [full, *others[first : first + 2]]
        for full, *others in measured(models, request, methods, held_out, stages)
        for first in range(0, len(others), 2)
    ]


def measured(
    models: Pair,
    request: Request,
    methods: Mapping[float, Sequence[Method]],
    held_out: Text,
    stages: Stages,
) -> list[list[Row]]:
    """The rows of each temperature's methods, on held-out text."""
    windows = held_out.held_out_windows()
    rows = evaluate_pair(models, methods, windows, request.draft_length, request.seed, stages)
    return [[rows.pop(0) for _ in chosen] for chosen in methods.values()]


def save(
    models: Pair,
    request: Request,
    drafters: Sequence[Calibrated],
    rows: Sequence[Sequence[Row]],
    text: Text,
    held_out: Text,
) -> None:
    """Write the drafter's directory or, for several settings, a directory of them."""
    dtype = models.drafter_dtype
    sources = {"text": text.sources, "held_out": held_out.sources}
    with request.places(len(drafters)) as place:
        for one, measured in zip(drafters, rows, strict=True):
            save_drafter(
                place(request.name(one.setting)),
                models.saved_drafter,
                models.tokenizer,
                replace(one.method.drafter.in_dtype(dtype), lifted=models.lifted),
                {**settings_of(models, request, one, measured), **sources},
                overwrite=request.overwrite,
            )


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
