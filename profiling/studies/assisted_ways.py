"""The ways to generate that `profiling.studies.assisted` compares, and one run of each."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration.material import Material, Options, successor_counts
from rdk_cuda.calibration.methods import (
    RECOMMENDED,
    VIRTUAL,
    Method,
    Pruning,
)
from rdk_cuda.calibration.reading import read_models
from rdk_cuda.calibration.recording import record
from rdk_cuda.commands.models import Models
from rdk_cuda.commands.progress import Stages
from rdk_cuda.commands.text import encode
from rdk_cuda.demo.corpus import read_text, training_files
from rdk_cuda.demo.text import WINDOW, windows_of
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.transformers import Generate

__all__ = ["ASSISTED", "PLAIN", "Run", "Settings", "Way", "material_of", "run_way", "ways_at"]

PLAIN, ASSISTED = "generate", "assistant_model"


@dataclass(frozen=True)
class Settings:
    """What the figures depend on, besides the models.

    Attributes:
        temperatures: 0 for greedy.
        keep: the share of the vocabulary that the pruned drafter keeps.
        draft_length: K.
        prompts, prompt, tokens: how many are continued, of how many tokens, by how many.
        batch: size of the larger batches.
        rounds: of every way, one after the other; samples differ between them.
        positions: of calibration text.
        every: one of so many training files, of which successors are counted.
    """

    temperatures: tuple[float, ...] = (0.0, 1.0, 0.7)
    keep: float = 0.25
    draft_length: int = 4
    prompts: int = 8
    prompt: int = 128
    tokens: int = 64
    batch: int = 8
    rounds: int = 5
    positions: int = 16128
    every: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Way:
    """Arguments of `generate` that make up a way; `ours` if they have one of our objects."""

    name: str
    batches: tuple[int, ...]
    arguments: dict[str, Any]
    ours: Generate | None = None


@dataclass(frozen=True)
class Run:
    """All prompts, continued once.

    Attributes:
        tokens: `[prompts, new]`.
        passes: of the target, one for each sequence that took part.
        judged, accepted: first drafts of a pass, where we are told.
        seconds: for all of it.
    """

    tokens: list[list[int]]
    passes: int
    judged: int
    accepted: int
    seconds: float


def material_of(models: Models, settings: Settings, stages: Stages) -> Material:
    """Calibration text, read by both models."""
    files = training_files()
    windows = windows_of(models.tokenizer, files, settings.positions, min(WINDOW, models.context))
    recording = record(
        read_models(models.target, models.drafter),
        windows,
        temperatures=recorded(settings),
        seed=settings.seed,
        each=stages.each,
    )
    counted = stages.each(files[:: settings.every], "Calibrating: counting successors")
    documents = (encode(models.tokenizer, read_text(file)) for file in counted)
    return Material(recording, models.drafter_head, successor_counts(documents, recording))


def recorded(settings: Settings) -> tuple[float, ...]:
    """Temperatures to record: 1.0, at which tokens are kept, and those of use."""
    return tuple(dict.fromkeys((1.0, *filter(None, settings.temperatures))))


def ways_at(
    temperature: float, models: Models, material: Material, settings: Settings
) -> list[Way]:
    """Plain, the library's assisted, which takes one sequence at a time, and ours."""
    mean_probs = material.recording.mean_probs_at(1.0)
    count = max(1, round(settings.keep * mean_probs.numel()))
    options = Options(seed=settings.seed)
    pruning = Pruning(material, Vocabulary.most_likely(mean_probs, count), options)
    sizes, k = (1, settings.batch), settings.draft_length
    full = Generate(models.drafter, draft_length=k)
    pruned = {
        name: generate_with(pruning.method(name, temperature), models, k)
        for name in (VIRTUAL, RECOMMENDED)
    }
    return [
        Way(PLAIN, sizes, {}),
        Way(ASSISTED, (1,), {"assistant_model": models.drafter}),
        Way(f"{ASSISTED}, K = {k}", (1,), {"assistant_model": models.drafter, "fixed": k}),
        Way("ours: full drafter", sizes, {"custom_generate": full}, full),
        *(
            Way(f"ours: {name}", sizes, {"custom_generate": generate}, generate)
            for name, generate in pruned.items()
        ),
    ]


def generate_with(method: Method, models: Models, draft_length: int) -> Generate:
    """A pruned drafter's head, affinity and dynamic tokens."""
    drafter = method.drafter
    return Generate(
        HuggingFaceModel(models.drafter, head=drafter.weight, head_bias=drafter.bias),
        drafter.affinity,
        draft_length=draft_length,
        vocabulary=drafter.vocabulary,
        dynamic_tokens=drafter.dynamic_tokens,
    )


def run_way(
    way: Way, batch: int, models: Models, prompts: Tensor, new: int, temperature: float, seed: int
) -> Run:
    """Continue `prompts [N, L]` by `new` tokens each, past end tokens: equal work for all."""
    sampling: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": 0}
    arguments = {**way.arguments, **sampling, "max_new_tokens": new, "eos_token_id": None}
    fixed = arguments.pop("fixed", None)
    torch.manual_seed(seed)
    tokens: list[list[int]] = []
    passes = judged = accepted = 0
    with counted_passes(models.target) as count, fixed_drafts(models.drafter, fixed):
        start = time.perf_counter()
        for ids in prompts.split(batch):
            before = count()
            mask = torch.ones_like(ids)
            output = models.target.generate(ids, attention_mask=mask, **arguments)
            tokens += output[:, ids.shape[1] :].tolist()
            statistics = way.ours.statistics if way.ours is not None else None
            if statistics is None:
                passes += (count() - before) * len(ids)
            else:
                passes += statistics.target_passes
                judged += statistics.drafted[0]
                accepted += statistics.accepted[0]
        seconds = time.perf_counter() - start
    return Run(tokens, passes, judged, accepted, seconds)


@contextmanager
def counted_passes(model: Any) -> Iterator[Callable[[], int]]:
    """How many forward passes a model has made so far."""
    calls = [0]

    def count(*_: Any) -> None:
        calls[0] += 1

    hook = model.register_forward_pre_hook(count)
    try:
        yield lambda: calls[0]
    finally:
        hook.remove()


@contextmanager
def fixed_drafts(assistant: Any, length: int | None) -> Iterator[None]:
    """The library's assistant drafts so many tokens, however sure it is of them."""
    own = assistant.generation_config
    if length is not None:
        assistant.generation_config = copy.deepcopy(own)
        assistant.generation_config.num_assistant_tokens = length
        assistant.generation_config.assistant_confidence_threshold = 0.0
    try:
        yield
    finally:
        assistant.generation_config = own
