"""`python -m examples.demo`, from the models to the files."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from profiling.machine import describe
from rdk_cuda.files import write_json
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.report.plots import acceptance_figure
from rdk_cuda.recipes.report.rows import Bootstrap, versions
from rdk_cuda.recipes.report.written import write_figure

from . import gemma, report
from .arguments import Settings
from .duration import minutes
from .experiment import CALIBRATION_FACTOR, Measured, choose_prompts, measure
from .results import acceptance_rows, plotted, speed_rows
from .shipped import Models, load_demo, load_two


def train(output: Path) -> int:
    """Train the demo's models into `output`; their checkpoints stay in `output`/training."""
    from .training import train

    checkpoints = output / "training"
    try:
        train(output, working_directory=checkpoints)
    except KeyboardInterrupt:
        if not any(checkpoints.glob("*.checkpoint.pt")):
            raise
        raise KeyboardInterrupt(f"The same command goes on from {checkpoints}.") from None
    models = f"--target {output / 'target'} --drafter {output / 'drafter'}"
    print(f"To use them: python -m examples.demo {models}")
    return 0


def gemma_demo(output: Path, settings: Settings) -> int:
    """Run it with a real model and an EAGLE-3 head; returns 0, or 1 if a check failed."""
    gemma.refuse_missing()
    console = Console()
    console.print(f"{gemma.terms()}\n", **report.PLAIN)
    quiet()
    console.print("Loading Gemma 3 270M, about a minute ...", **report.PLAIN)
    start = time.monotonic()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return run(gemma.load_with_head(), output, settings, start)


def demo(target: Path | None, drafter: Path | None, output: Path, settings: Settings) -> int:
    """Run the demo; returns 0, or 1 if a check failed."""
    start = time.monotonic()
    quiet()
    shipped = target is None or drafter is None
    models = load_demo() if target is None or drafter is None else load_two(target, drafter)
    if settings.threads is not None or shipped:
        # Of models this small, a second thread costs more than it brings.
        torch.set_num_threads(settings.threads or 1)
    return run(models, output, settings, start)


def run(models: Models, output: Path, settings: Settings, start: float) -> int:
    """Measure, print and write."""
    console = Console()
    windows = (1 + CALIBRATION_FACTOR) * settings.positions // settings.length
    guess = minutes(models, settings, choose_prompts(models, settings), windows)
    long = f"{round(guess)} minutes" if guess >= 1.5 else "a minute"
    about = f"This will take about {long} on this machine as busy as it is."
    console.print(f"{report.INTRODUCTION}\n{about}\n", **report.PLAIN)
    with Stages() as stages:
        measured = measure(models, settings, stages)
    results = results_of(models, settings, measured)
    report.show(console, results)
    results["elapsed_seconds"] = time.monotonic() - start
    files = output / "results.json", output / "acceptance.png"
    write_json(results, files[0])
    rows = plotted(results["acceptance"], settings.temperature)
    write_figure(acceptance_figure(rows, "Held-out text"), files[1])
    elapsed = f"{results['elapsed_seconds']:.0f} s"
    console.print(f"\n{files[0]} and {files[1]} written after {elapsed}.", **report.PLAIN)
    return 0 if all(check.passed for check in measured.checks) else 1


def results_of(models: Models, settings: Settings, measured: Measured) -> dict[str, Any]:
    """Everything that is shown and written, as plain data."""
    bootstrap = Bootstrap([window.document for window in measured.windows], seed=settings.seed)
    target, drafter = models.pair.names
    return {
        "format": "rdk_cuda.demo",
        "format_version": 2,
        "settings": asdict(settings),
        "models": {"target": target, "drafter": drafter},
        "versions": {**versions(), **describe(torch.device("cpu"))},
        "positions": {
            "calibration": measured.material.recording.positions,
            "held_out": measured.rates[0].numel(),
            "documents": len(bootstrap.members),
        },
        "acceptance": acceptance_rows(measured, bootstrap),
        "speed": speed_rows(measured),
        "times_doubt": measured.doubt,
        "checks": [asdict(check) for check in measured.checks],
        "continuation": measured.continuation._asdict(),
    }
