"""What training a calibrated drafter brings: each loss, on text of the target and on other text.

    python -m studies.distillation                        # the demo's two models
    python -m studies.distillation --model gemma3-270m    # Gemma 3 270M and its EAGLE-3 head
    python -m studies.distillation --model gemma3-270m --drafter DIR  # and a drafter of your own

The drafter keeps 6.25 % of the vocabulary, with virtual and dynamic tokens. It is calibrated on the
demo's text, trained by `python -m rdk_cuda distill`, and measured on text that the target writes
behind beginnings of other modules. A row is a loss:

    temperature, train, data, loss, steps
    before, after        acceptance of one draft
    gain                 with the ends of its 95 % interval, a bootstrap over documents
    length_before, length_after
                         accepted drafts of 4, expected of the rates along the text
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo import gemma
from examples.demo.corpus import calibration_files, held_out_files
from examples.demo.shipped import SHIPPED
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from profiling.tables import table
from rdk_cuda.__main__ import main as rdk_cuda
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.cli.distill import add_distill
from rdk_cuda.recipes.distill import loaded
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.request import Training
from rdk_cuda.recipes.stages.stage import State
from rdk_cuda.recipes.timing import expected_accepted_length
from rdk_cuda.training import LOSSES

RESULTS = ROOT / "profiling" / "results" / "distillation"
KEEP, K = 0.0625, 4

Row = dict[str, Any]


def files_of(options: argparse.Namespace) -> tuple[Path, Path]:
    """A target and its drafter."""
    if options.model is None:
        return SHIPPED / "target", options.drafter or SHIPPED / "drafter"
    return gemma.weights(), options.drafter or SHIPPED / "gemma-eagle3"


def calibrated(options: argparse.Namespace, temperature: float, folder: Path) -> Path:
    """The drafter that all trainings at a temperature begin with."""
    target, drafter = files_of(options)
    out = folder / f"calibrated-{temperature:g}"
    said = ("--target", target, "--drafter", drafter, "--out", out, "--text", *calibration_files())
    said += ("--held-out", *held_out_files(), "--keep", KEEP, "--temperature", temperature)
    said += ("--positions", options.positions, "--recording", folder / f"{temperature:g}.recording")
    if code := rdk_cuda(["calibrate", *map(str, said)]):
        raise SystemExit(code)
    return out


def trained(options: argparse.Namespace, start: Path, data: str, folder: Path) -> Iterator[Row]:
    """What each loss comes to, as the command trains."""
    command = Parser()
    add_distill(command.add_subparsers())
    given: Sequence[object] = (
        *("distill", start, "--target", files_of(options)[0]),
        *("--text", *calibration_files(), "--held-out", *held_out_files()),
        *("--train", options.train, "--loss", *options.loss, "--data", data),
        *("--steps", options.steps, "--batch", options.batch, "--tokens", options.tokens),
        *("--learning-rate", options.learning_rate, "--out", folder / f"{start.name}-{data}"),
    )
    arguments = command.parse_args(list(map(str, given)))
    request = Training.of(arguments, arguments.out)
    models, stage = loaded(request)
    state = State.of(request, models)
    with state.progress:
        stage.check(state)
        found = stage.run(state)
    for outcome in found:
        yield {
            **{"temperature": stage.temperature(state), "train": options.train, "data": data},
            **{"loss": outcome.loss, "steps": outcome.steps},
            **{"before": mean(outcome.before), "after": mean(outcome.after)},
            **dict(zip(("gain", "gain_low", "gain_high"), outcome.gain, strict=True)),
            "length_before": mean(expected_accepted_length(outcome.before, K)),
            "length_after": mean(expected_accepted_length(outcome.after, K)),
        }


def mean(rates: Tensor) -> float:
    """Over texts and positions."""
    return float(rates.double().mean())


def page(rows: Sequence[Row]) -> str:
    """A line for each row."""
    titles = ("T", "train", "data", "loss", "steps", "before", "after", "gain", "of 4", "after")
    lines = [
        (
            *(f"{row['temperature']:g}", row["train"], row["data"], row["loss"], str(row["steps"])),
            *(f"{row['before']:.4f}", f"{row['after']:.4f}"),
            f"{row['gain']:+.4f} [{row['gain_low']:+.4f}, {row['gain_high']:+.4f}]",
            *(f"{row['length_before']:.2f}", f"{row['length_after']:.2f}"),
        )
        for row in rows
    ]
    return table(titles, lines, "rlllrrrrrr")


def run(options: argparse.Namespace) -> None:
    """Every temperature with every kind of text."""
    quiet()
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    about = {"model": options.model or "demo", "drafter": files_of(options)[1].name}
    about |= {"keep": KEEP, "draft_length": K, "positions": options.positions}
    about |= {name: getattr(options, name) for name in ("batch", "tokens", "learning_rate")}
    with tempfile.TemporaryDirectory() as name:
        for temperature in options.temperature:
            start = calibrated(options, temperature, Path(name))
            for data in options.data:
                rows += trained(options, start, data, Path(name))
                write_found(options.output, page(rows), **about, rows=rows)
    print(page(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.distillation", description=__doc__)
    add = command.add_argument
    add("--model", choices=[gemma.NAME], help="in place of the demo's models")
    add("--drafter", type=Path, metavar="DIR", help="in place of the one that is shipped")
    add("--train", default="head", help="as in distill (%(default)s)")
    add("--loss", nargs="+", default=("tv", "log-alpha", "forward-kl"), choices=LOSSES)
    add("--data", nargs="+", default=("target", "text"), help="as in distill")
    add("--temperature", nargs="+", type=positive, default=(1.0, 0.7))
    add("--positions", type=natural, default=24576, help="that are calibrated on (%(default)s)")
    for name, default in (("steps", 60), ("batch", 8), ("tokens", 128), ("threads", 1)):
        add(f"--{name}", type=natural, default=default, metavar="N", help="(%(default)s)")
    add("--learning-rate", type=positive, default=1e-3, metavar="R", help="(%(default)s)")
    add("--output", type=Path, default=RESULTS / "demo.json", metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
