"""What lifted rows bring back of the acceptance that a published EAGLE-3 drafter lost.

`python -m studies.lifted_rows --full DIR --published DIR --work DIR` takes two drafters of one
target by the same recipe, for example `python -m examples.eagle3.demo` with and without `--kept`.
Calibrated drafters stay in `--work`, and the same command goes on from there.
The first has all tokens. The second stands for a published one: nobody has the rows of the tokens
that it was trained without. It is calibrated on source code, as `python -m rdk_cuda calibrate`
does. Acceptance is exact, `sum_x min(p, q)`, at all places of a draft, on modules that neither
drafter nor calibration has read:

    temperature, method, tuned      of the published drafter, and what calibration chose
    acceptance                      with 95 % intervals over documents, as all that follows
    gain                            over the published drafter as it is
    recovered                       share of what the full drafter has more; null where that is
                                    not more by more than chance
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from examples.demo.corpus import calibration_files, held_out_files, read_text, training_files
from examples.demo.shipped import SHIPPED
from profiling.commands import Parser, run_command, write_found
from profiling.tables import table
from rdk_cuda.calibration import (
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Material,
    Method,
    Options,
    Pruning,
    Window,
    record,
    successor_counts,
)
from rdk_cuda.cli.arguments import natural, share
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.evaluation import Bootstrap
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned, save_drafter
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import Text, encode, first_token, read_documents
from rdk_cuda.recipes.inputs.loading import load_pair
from rdk_cuda.recipes.inputs.pairs import Pair, StatePair
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.report.evaluation import measure_acceptance
from rdk_cuda.recipes.report.rows import recovered_share
from rdk_cuda.recipes.stages.lifted import with_lifted_rows

TEMPERATURES, WINDOW = (1.0, 0.7, 0.0), 128
COMPARED = VIRTUAL, RECOMMENDED

Row = dict[str, Any]


def windows_of(models: Pair, files: Sequence[Path], count: int) -> list[Window]:
    """That many positions of the files; some modules are empty."""
    files = [file for file in files if read_text(file).strip()]
    text = Text(read_documents(models.tokenizer, files), WINDOW, first_token(models.tokenizer))
    return text.windows(count)


def calibrate(models: Pair, options: argparse.Namespace, stages: Stages) -> None:
    """Write a directory for each temperature and method that is compared, with lifted rows."""
    recording = record(
        models.read(options.draft_length),
        windows_of(models, calibration_files(), options.positions),
        temperatures=[t for t in TEMPERATURES if t > 0],
        samples=options.samples,
        memory=4 << 30,
        each=stages.each,
    )
    for given in stages.each([recording], "Lifting rows"):
        models = with_lifted_rows(models, given, stages.each)
    if models.kept is None:
        raise ValueError("the published drafter has all tokens; name one that was pruned")
    documents = [encode(models.tokenizer, read_text(file)) for file in training_files()[::10]]
    size = Options(screen=options.screen_bytes, samples=options.compared)
    prunings: dict[float, Pruning] = {}
    for temperature in stages.each(TEMPERATURES, "Calibrating"):
        recorded = temperature or min(t for t in TEMPERATURES if t > 0)
        if recorded not in prunings:
            alone = recording.at(recorded)
            material = Material(alone, models.drafter_head, successor_counts(documents, alone))
            prunings[recorded] = Pruning(material, models.kept, size)
        for name in COMPARED:
            method = prunings[recorded].method(name, temperature)
            save_drafter(
                options.work / f"{name} {temperature:g}",
                models.saved_drafter,
                models.tokenizer,
                replace(method.drafter, lifted=models.lifted),
                {"temperature": temperature, "tuned": method.tuned},
                overwrite=True,
            )


def read_methods(models: Pair, directories: dict[str, Path]) -> tuple[Pair, list[Method]]:
    """The models with the lifted rows in these directories, and the methods that are there."""
    methods = []
    for name, directory in directories.items():
        drafter, settings = load_pruned(directory)
        if isinstance(models, StatePair):
            models = replace(models, lifted=drafter.lifted)
        keep = drafter.vocabulary.draft_size / drafter.vocabulary.target_size
        methods.append(Method(name, keep, drafter.in_dtype(torch.float32), settings["tuned"]))
    return models, methods


def refuse_other_arguments(options: argparse.Namespace) -> None:
    """What is in `--work` is of one set of arguments, which it says."""
    free = ("work", "output", "threads")
    given = {name: str(value) for name, value in vars(options).items() if name not in free}
    place = options.work / "arguments.json"
    if place.exists() and json.loads(place.read_text(encoding="utf-8")) != given:
        raise InputError(f"{place} is of other arguments; give these again, or name another --work")
    options.work.mkdir(parents=True, exist_ok=True)
    write_json(given, place)


def measure(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    refuse_other_arguments(options)
    dtype = getattr(torch, options.dtype)
    published, full = (
        load_pair(options.target, drafter, dtype=dtype)
        for drafter in (options.published, options.full)
    )
    places = {t: [options.work / f"{name} {t:g}" for name in COMPARED] for t in TEMPERATURES}
    if not all(place.exists() for of in places.values() for place in of):
        with Stages() as stages:
            calibrate(published, options, stages)
    methods: dict[float, list[Method]] = {}
    for t, directories in places.items():
        models, own = read_methods(published, dict(zip(COMPARED, directories, strict=True)))
        plain = PrunedDrafter.plain(models.drafter_head, own[0].drafter.vocabulary)
        methods[t] = [Method(PRUNED, own[0].keep, plain), *own, Method.whole(models)]
    # The rows were lifted once, for all temperatures.
    measured = [(models, methods), (full, {t: [Method.whole(full)] for t in methods})]
    with Stages() as stages:
        held_out = windows_of(published, held_out_files(), options.held_out)
        found = [
            measure_acceptance(
                models.read(options.draft_length),
                models.drafter_head,
                {t: [method.drafter for method in own] for t, own in chosen.items()},
                stages.each(held_out, "Measuring"),
            )
            for models, chosen in measured
        ]
    bootstrap = Bootstrap([window.document for window in held_out], seed=0)
    rows = []
    for temperature in TEMPERATURES:
        *rates_of, best = torch.cat([rates[temperature] for rates in found])
        plain = rates_of[0]
        lost = bootstrap.mean(best - plain)
        about: Row = {"temperature": temperature, "full": bootstrap.mean(best), "lost": lost}
        about |= {"positions": plain.numel(), "documents": len(bootstrap.members)}
        for method, rates in zip(methods[temperature], rates_of, strict=True):
            row = {**about, "method": method.name, "tuned": method.tuned}
            row["acceptance"] = bootstrap.mean(rates)
            row["gain"] = bootstrap.mean(rates - plain)
            is_lost = lost.low > 0
            row["recovered"] = recovered_share(bootstrap, rates, plain, best) if is_lost else None
            rows.append(row)
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    torch.set_num_threads(options.threads)
    rows = measure(options)
    print(page(rows))
    paths = ("target", "full", "published", "work", "output")
    settings = {name: v for name, v in vars(options).items() if name not in paths}
    write_found(options.output, page(rows), **settings, name=options.target.name, rows=rows)


TITLES = ("method", "T", "full drafter", "accepted", "gain, points", "recovered, %", "chosen")


def page(rows: Sequence[Row]) -> str:
    """All rows as a table."""
    return table(TITLES, map(line, rows), "lr")


def line(row: Row) -> list[str]:
    """A row's cells."""
    gain, recovered = row["gain"], row["recovered"]
    return [
        row["method"],
        f"{row['temperature']:g}",
        f"{row['full'][0]:.4f}",
        f"{row['acceptance'][0]:.4f}",
        "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * end for end in gain)),
        ""
        if recovered is None
        else "{:.0f} [{:.0f}, {:.0f}]".format(*(100 * x for x in recovered)),
        row["tuned"],
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.lifted_rows", description=__doc__)
    add = command.add_argument
    add("--target", type=Path, default=SHIPPED / "target", metavar="DIR", help="the demo's")
    for name in ("full", "published", "work"):
        add(f"--{name}", type=Path, required=True, metavar="DIR")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the models")
    for name, default, text in (
        ("positions", 24576, "of calibration text"),
        ("held-out", 2600, "positions to measure on"),
        ("samples", 20000, "positions that are recorded"),
        ("compared", 700, "samples that candidates are compared on"),
        ("draft-length", 4, "tokens of a draft"),
        ("threads", torch.get_num_threads(), "of torch"),
    ):
        add(f"--{name}", type=natural, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--screen-bytes", type=share, default=0.1, help="as in calibrate (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file; next to it the rows as a table")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
