"""`python -m profiling.studies.assisted`: the library's assisted generation and ours, in one run.

The demo's models continue the same held-out text by `model.generate` as it is, with the library's
own `assistant_model=`, and with `rdk_cuda.integrations.huggingface.Generate`: the full drafter,
and a quarter of its vocabulary with virtual and dynamic tokens. Every round runs every way once, so
that all of them meet the same disturbances. Writes results.json and table.md when all is measured.
With `--quick` it only shows whether everything runs; the figures mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from examples.demo.checks import check_greedy
from examples.demo.corpus import read_text, training_files
from examples.demo.shipped import load_shipped
from examples.demo.text import WINDOW, Prompt, held_out_prompts, windows_of
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.material import Material, Options, successor_counts
from rdk_cuda.calibration.methods import RECOMMENDED, VIRTUAL, Pruning
from rdk_cuda.calibration.recording import record
from rdk_cuda.calibration.recording.reading import read_models
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.documents import encode
from rdk_cuda.cli.models import Models, quiet
from rdk_cuda.cli.progress import Stages
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate

from ..commands import Parser, run_command, write_text
from ..machine import ROOT, describe, now
from ..tables import table

__all__ = ["RESULTS", "main"]

RESULTS = ROOT / "profiling" / "results" / "assisted"
PLAIN, ASSISTED = "generate", "assistant_model"

Row = dict[str, Any]


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


QUICK = Settings(
    temperatures=(0.0, 0.7), prompts=2, tokens=6, batch=2, rounds=1, positions=768, every=200
)


@dataclass(frozen=True)
class Way:
    """Arguments of `generate` that make up a way; `fixed` drafts of the library's assistant."""

    name: str
    batch: int
    arguments: dict[str, Any]
    fixed: int | None = None


@dataclass(frozen=True)
class Run:
    """All prompts, continued once.

    Attributes:
        tokens: `[prompts, new]`.
        passes: of the target, one for each sequence that took part.
        judged, accepted: first drafts of a pass, where we are told.
    """

    tokens: list[list[int]]
    passes: int
    judged: int
    accepted: int
    seconds: float


def pruning_of(models: Models, settings: Settings, stages: Stages) -> Pruning:
    """Calibration text, read by both models, and the tokens kept."""
    files = training_files()
    windows = windows_of(models.tokenizer, files, settings.positions, min(WINDOW, models.context))
    recording = record(
        read_models(models.target, models.drafter),
        windows,
        # 1.0, at which tokens are kept, and those of use.
        temperatures=tuple(dict.fromkeys((1.0, *filter(None, settings.temperatures)))),
        seed=settings.seed,
        each=stages.each,
    )
    counted = stages.each(files[:: settings.every], "Calibrating: counting successors")
    documents = (encode(models.tokenizer, read_text(file)) for file in counted)
    material = Material(recording, models.drafter_head, successor_counts(documents, recording))
    mean_probs = recording.mean_probs_at(1.0)
    count = max(1, round(settings.keep * mean_probs.numel()))
    vocabulary = Vocabulary.most_likely(mean_probs, count)
    return Pruning(material, vocabulary, Options(seed=settings.seed))


def ways_at(temperature: float, models: Models, pruning: Pruning, settings: Settings) -> list[Way]:
    """Plain, the library's assisted, which takes one sequence at a time, and ours."""
    k, sizes = settings.draft_length, (1, settings.batch)
    ours = {"full drafter": Generate(models.drafter, draft_length=k)}
    for name in (VIRTUAL, RECOMMENDED):
        drafter = pruning.method(name, temperature).drafter
        ours[name] = Generate(
            HuggingFaceModel(models.drafter, head=drafter.weight, head_bias=drafter.bias),
            drafter.affinity,
            draft_length=k,
            vocabulary=drafter.vocabulary,
            dynamic_tokens=drafter.dynamic_tokens,
        )
    assisted = {"assistant_model": models.drafter}
    return [
        *(Way(PLAIN, batch, {}) for batch in sizes),
        Way(ASSISTED, 1, assisted),
        Way(f"{ASSISTED}, K = {k}", 1, assisted, fixed=k),
        *(
            Way(f"ours: {name}", batch, {"custom_generate": generate})
            for name, generate in ours.items()
            for batch in sizes
        ),
    ]


def run_way(
    way: Way, models: Models, prompts: Tensor, new: int, temperature: float, seed: int
) -> Run:
    """Continue `prompts [N, L]` by `new` tokens each, past end tokens: equal work for all."""
    sampling: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": 0}
    arguments = {**way.arguments, **sampling, "max_new_tokens": new, "eos_token_id": None}
    torch.manual_seed(seed)
    tokens: list[list[int]] = []
    passes = judged = accepted = 0
    with counted_passes(models.target) as calls, fixed_drafts(models.drafter, way.fixed):
        start = time.perf_counter()
        for ids in prompts.split(way.batch):
            before = calls[0]
            mask = torch.ones_like(ids)
            output = models.target.generate(ids, attention_mask=mask, **arguments)
            tokens += output[:, ids.shape[1] :].tolist()
            told = getattr(way.arguments.get("custom_generate"), "statistics", None)
            if told is None:
                passes += (calls[0] - before) * len(ids)
            else:
                passes += told.target_passes
                judged += told.drafted[0]
                accepted += told.accepted[0]
        seconds = time.perf_counter() - start
    return Run(tokens, passes, judged, accepted, seconds)


@contextmanager
def counted_passes(model: Any) -> Iterator[list[int]]:
    """How many forward passes a model has made so far."""
    calls = [0]

    def count(*_: Any) -> None:
        calls[0] += 1

    hook = model.register_forward_pre_hook(count)
    try:
        yield calls
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


def measure(models: Models, settings: Settings, stages: Stages) -> list[Row]:
    """A row for each temperature, way and size of batch."""
    prompts = held_out_prompts(models.tokenizer, settings.prompt)[: settings.prompts]
    ids = torch.tensor([prompt.ids for prompt in prompts])
    pruning = pruning_of(models, settings, stages)
    rows = []
    for temperature in settings.temperatures:
        ways = ways_at(temperature, models, pruning, settings)
        runs: list[list[Run]] = [[] for _ in ways]
        turns = [(turn, place) for turn in range(settings.rounds + 1) for place in range(len(ways))]
        for turn, place in stages.each(turns, f"Generating at temperature {temperature:g}"):
            if turn == 0:  # to warm up
                run_way(ways[place], models, ids[:1], 4, temperature, seed=0)
            else:
                seed = settings.seed + turn
                once = run_way(ways[place], models, ids, settings.tokens, temperature, seed)
                runs[place].append(once)
        rows += rows_of(models, prompts, temperature, ways, runs)
    return rows


def rows_of(
    models: Models,
    prompts: Sequence[Prompt],
    temperature: float,
    ways: Sequence[Way],
    runs: Sequence[Sequence[Run]],
) -> list[Row]:
    """What the rounds at one temperature come to."""
    plain = {way.batch: each for way, each in zip(ways, runs, strict=True) if way.name == PLAIN}
    rows = []
    for way, each in zip(ways, runs, strict=True):
        tokens = sum(len(new) for once in each for new in once.tokens)
        passes, judged = (sum(getattr(run, name) for run in each) for name in ("passes", "judged"))
        seconds = statistics.median(once.seconds for once in each)
        ratios = [a.seconds / b.seconds for a, b in zip(plain[way.batch], each, strict=True)]
        same = None
        if temperature == 0:
            check = check_greedy(models, prompts, plain[1][0].tokens, {way.name: each[0].tokens})
            same = {"passed": check.passed, **check.figures}
        rows.append(
            {
                "temperature": temperature,
                "way": way.name,
                "batch": way.batch,
                "tokens": tokens,
                "target_passes": passes,
                "target_passes_per_token": passes / tokens,
                "accepted_length": tokens / passes - 1,
                "first_draft_acceptance": (
                    sum(once.accepted for once in each) / judged if judged else math.nan
                ),
                "seconds": [once.seconds for once in each],
                "tokens_per_second": tokens / len(each) / seconds,
                "times_plain": statistics.median(ratios),
                "same_greedy_text": same,
            }
        )
    return rows


COLUMNS = (
    *("temperature", "", "batch", "accepted length", "first draft", "passes / token"),
    *("tokens / s", "x generate", "greedy text"),
)


def page(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The rows as a Markdown table, and where they come from."""
    settings = about["settings"]
    return "\n".join(
        [
            f"{settings['prompts']} prompts of {settings['prompt']} tokens of held-out source, "
            f"each continued by {settings['tokens']}; {settings['rounds']} rounds, median times. "
            f"{about['device_name']}, threads: {about['threads']}, torch {about['torch']}, "
            f"transformers {about['transformers']}, load {about['load']:.1f}.",
            "",
            "Accepted length: tokens of a target pass beyond its own one. First draft: how often "
            "it is accepted. x generate: the time of `generate` at the same batch size over this "
            "one's. The library's assistant drafts up to 20 tokens, as long as it is sure of "
            "them; K is fixed.",
            "",
            table(COLUMNS, map(cells, rows), "rlrrrrrrl"),
            "",
        ]
    )


def cells(row: Row) -> list[str]:
    """In the order of `COLUMNS`."""
    same, first = row["same_greedy_text"], row["first_draft_acceptance"]
    text = ""
    if same is not None:
        text = "the same" if same["passed"] else f"{same['different']} of {same['outputs']} DIFFER"
        text += f" ({same['ties']} at a tie)" if same["ties"] else ""
    return [
        f"{row['temperature']:g}",
        row["way"],
        str(row["batch"]),
        f"{row['accepted_length']:.2f}",
        "" if math.isnan(first) else f"{first:.2f}",
        f"{row['target_passes_per_token']:.3f}",
        f"{row['tokens_per_second']:.0f}",
        f"{row['times_plain']:.2f}",
        text,
    ]


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    settings = QUICK if options.quick else Settings()
    if options.rounds is not None:
        settings = replace(settings, rounds=options.rounds)
    torch.set_num_threads(options.threads)
    quiet()
    about = {"run": now(), **describe(torch.device("cpu"))}
    with Stages() as stages:
        rows = measure(load_shipped(), settings, stages)
    about |= {"transformers": transformers.__version__, "load": os.getloadavg()[0]}
    about |= {"settings": asdict(settings)}
    text = page(rows, about)
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    write_json({**about, "rows": rows}, options.output / "results.json")
    write_text(text, options.output / "table.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.assisted", description=__doc__)
    add = command.add_argument
    add("--quick", action="store_true", help="small sizes, to see whether it runs")
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder (%(default)s)")
    add("--threads", type=natural, default=1, metavar="N", help="of torch (%(default)s)")
    add("--rounds", type=natural, metavar="N", help=f"of every way ({Settings.rounds})")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
