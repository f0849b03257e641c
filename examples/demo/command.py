"""`python -m examples.demo`, from the models to the files."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rdk_cuda.cli.evaluate import versions
from rdk_cuda.cli.progress import Stages
from rdk_cuda.evaluation.acceptance import Bootstrap
from rdk_cuda.evaluation.plots import acceptance_figure
from rdk_cuda.files import write_figure, write_json
from rdk_cuda.pair.loading import quiet
from rdk_cuda.pair.pairs import ModelPair

from . import gemma, report
from .arguments import Settings
from .experiment import Measured, expected, measure
from .results import continuation, plotted, table_rows
from .shipped import load_shipped, load_two


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
    """Run it with a real model and its own short context; returns 0, or 1 if a check failed."""
    gemma.refuse_missing()
    console = Console()
    console.print(f"{gemma.terms()}\n", **report.PLAIN)
    quiet()
    console.print("Loading Gemma 3 270M, about a minute ...", **report.PLAIN)
    start = time.monotonic()
    models = replace(gemma.load_gemma(), recent=settings.recent)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    console.print(expected(models, settings), **report.PLAIN)
    return run(models, output, settings, start)


def demo(target: Path | None, drafter: Path | None, output: Path, settings: Settings) -> int:
    """Run the demo; returns 0, or 1 if a check failed."""
    start = time.monotonic()
    quiet()
    shipped = target is None or drafter is None
    models = load_shipped() if target is None or drafter is None else load_two(target, drafter)
    if settings.threads is not None or shipped:
        # Of models this small, a second thread costs more than it brings.
        torch.set_num_threads(settings.threads or 1)
    return run(replace(models, recent=settings.recent), output, settings, start)


def run(models: ModelPair, output: Path, settings: Settings, start: float) -> int:
    """Measure, print and write."""
    with Stages() as stages:
        measured = measure(models, settings, stages)
    results = results_of(models, settings, measured)
    console = Console()
    report.show(console, results)
    results["elapsed_seconds"] = time.monotonic() - start
    files = output / "results.json", output / "acceptance.png"
    write_json(results, files[0])
    title = "Held-out text"
    write_figure(acceptance_figure(plotted(results), title), files[1])
    elapsed = f"{results['elapsed_seconds']:.0f} s"
    console.print(f"\n{files[0]} and {files[1]} written after {elapsed}.", **report.PLAIN)
    return 0 if all(check.passed for check in measured.checks) else 1


def results_of(models: ModelPair, settings: Settings, measured: Measured) -> dict[str, Any]:
    """Everything that is shown and written, as plain data."""
    bootstrap = Bootstrap([window.document for window in measured.windows], seed=settings.seed)
    rows = table_rows(models.vocabulary_size, measured, bootstrap)
    return {
        "format": "rdk_cuda.demo",
        "format_version": 1,
        "settings": asdict(settings),
        "models": {"target": models.names[0], "drafter": models.names[1]},
        "versions": versions(),
        "positions": {
            "calibration": measured.material.recording.positions,
            "held_out": measured.rates[0].numel(),
            "documents": len(bootstrap.members),
        },
        "table": rows,
        "times_doubt": measured.doubt,
        "checks": [asdict(check) for check in measured.checks],
        "continuation": continuation(models.tokenizer, measured),
    }
