"""`python -m profiling.studies.assisted`: the library's assisted generation and ours, in one run.

The demo's models continue the same held-out text by `model.generate` as it is, with the library's
own `assistant_model=`, and with `rdk_cuda.integrations.transformers.Generate`: the full drafter,
and a quarter of its vocabulary with virtual and dynamic tokens. Every round runs every way once, so
that all of them meet the same disturbances. Writes results.json and table.md when all is measured.
With `--quick` it only shows whether everything runs; the figures mean nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from rdk_cuda.__main__ import INTERRUPTED, Parser
from rdk_cuda.commands.arguments import natural
from rdk_cuda.commands.errors import InputError
from rdk_cuda.commands.files import write_json, write_whole
from rdk_cuda.commands.models import Models, load_models, quiet
from rdk_cuda.commands.progress import Stages
from rdk_cuda.demo.checks import check_greedy
from rdk_cuda.demo.text import Prompt, held_out_prompts

from ..machine import ROOT, describe, now
from ..tables import table
from .assisted_ways import PLAIN, Run, Settings, Way, material_of, run_way, ways_at

__all__ = ["RESULTS", "main"]

RESULTS = ROOT / "profiling" / "results" / "assisted"
QUICK = Settings(
    temperatures=(0.0, 0.7), prompts=2, tokens=6, batch=2, rounds=1, positions=768, every=200
)

Row = dict[str, Any]


def parser() -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.studies.assisted", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="small sizes, to see whether it runs")
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder (%(default)s)")
    add("--threads", type=natural, default=1, metavar="N", help="of torch (%(default)s)")
    add("--rounds", type=natural, metavar="N", help=f"of every way ({Settings.rounds})")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = parser()
    options = command.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    if options.rounds is not None:
        settings = replace(settings, rounds=options.rounds)
    try:
        run(options, settings)
    except InputError as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        return INTERRUPTED
    return 0


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Measure, print and write."""
    torch.set_num_threads(options.threads)
    quiet()
    about = {
        "run": now(),
        **describe(torch.device("cpu")),
        "transformers": transformers.__version__,
    }
    with Stages() as stages:
        rows = measure(load_models(None, None), settings, stages)
    about |= {"load": os.getloadavg()[0], "settings": asdict(settings)}
    text = page(rows, about)
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    write_json({**about, "rows": rows}, options.output / "results.json")
    write_whole(options.output / "table.md", lambda path: path.write_text(text, encoding="utf-8"))


def measure(models: Models, settings: Settings, stages: Stages) -> list[Row]:
    """A row for each temperature, way and size of batch."""
    prompts = held_out_prompts(models.tokenizer, settings.prompt)[: settings.prompts]
    ids = torch.tensor([prompt.ids for prompt in prompts])
    material = material_of(models, settings, stages)
    rows = []
    for temperature in settings.temperatures:
        ways = [
            (way, batch)
            for way in ways_at(temperature, models, material, settings)
            for batch in way.batches
        ]
        runs: list[list[Run]] = [[] for _ in ways]
        turns = [(turn, place) for turn in range(settings.rounds + 1) for place in range(len(ways))]
        for turn, place in stages.each(turns, f"Generating at temperature {temperature:g}"):
            if turn == 0:  # to warm up
                run_way(*ways[place], models, ids[:1], 4, temperature, seed=0)
            else:
                seed = settings.seed + turn
                once = run_way(*ways[place], models, ids, settings.tokens, temperature, seed)
                runs[place].append(once)
        rows += rows_of(models, prompts, temperature, ways, runs)
    return rows


def rows_of(
    models: Models,
    prompts: Sequence[Prompt],
    temperature: float,
    ways: Sequence[tuple[Way, int]],
    runs: Sequence[Sequence[Run]],
) -> list[Row]:
    """What the rounds at one temperature come to."""
    plain = {
        batch: each for (way, batch), each in zip(ways, runs, strict=True) if way.name == PLAIN
    }
    rows = []
    for (way, batch), each in zip(ways, runs, strict=True):
        tokens = sum(len(new) for once in each for new in once.tokens)
        passes = sum(once.passes for once in each)
        judged = sum(once.judged for once in each)
        seconds = statistics.median(once.seconds for once in each)
        ratios = [a.seconds / b.seconds for a, b in zip(plain[batch], each, strict=True)]
        same = None
        if temperature == 0:
            check = check_greedy(models, prompts, plain[1][0].tokens, {way.name: each[0].tokens})
            same = {"passed": check.passed, **check.figures}
        rows.append(
            {
                "temperature": temperature,
                "way": way.name,
                "batch": batch,
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
    "temperature", "", "batch", "accepted length", "first draft", "passes / token", "tokens / s",
    "x generate", "greedy text",
)  # fmt: skip
ALIGNMENT = "rlrrrrrrl"


def page(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The rows as a Markdown table, and where they come from."""
    settings = about["settings"]
    lines = [
        f"{settings['prompts']} prompts of {settings['prompt']} tokens of held-out source, each "
        f"continued by {settings['tokens']}; {settings['rounds']} rounds, median times. "
        f"{about['device_name']}, threads: {about['threads']}, torch {about['torch']}, "
        f"transformers {about['transformers']}, load {about['load']:.1f}.",
        "",
        "Accepted length: tokens of a target pass beyond its own one. First draft: how often it is "
        "accepted. x generate: the time of `generate` at the same batch size over this one's. The "
        "library's assistant drafts up to 20 tokens, as long as it is sure of them; K is fixed.",
        "",
        table(COLUMNS, map(cells, rows), ALIGNMENT),
    ]
    return "\n".join(lines) + "\n"


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


if __name__ == "__main__":
    sys.exit(main())
