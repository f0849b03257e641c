"""What `make gpu-measure` runs behind a `make gpu-check` that passed: figures, in ten minutes."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from .machine import ROOT
from .running import Part

MODELS = ("transformers", "sklearn", "rich")  # what decoding with the demo's models needs


def measurements(machine: dict[str, Any], output: Path) -> list[Part]:
    """For this machine, with the operators built already; results go to the folder `output`."""
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHON": sys.executable}
    without_models = missing(*MODELS)
    module = [sys.executable, "-m"]

    def file(name: str) -> list[str]:
        return ["--output", str(output / f"{name}.json")]

    return [
        Part(
            "targets",
            "the shapes that have targets, beside plain and compiled PyTorch, and growth",
            150,
            [
                [
                    *(sys.executable, "profiling/bench.py", "--device", "cuda"),
                    *("--preset", "targets", "--growth", "--seconds", "0.5", *file("targets")),
                ]
            ],
            environment,
        ),
        Part(
            "kernels",
            "Nsight Compute: what bounds each kernel",
            80,
            [["profiling/ncu.sh", str(output / "ncu")]],
            environment,
            skipped="" if shutil.which("ncu") else "ncu is not installed",
        ),
        Part(
            "peers",
            "other samplers of a decoding step, tested and timed",
            140,
            [[*module, "profiling.compare", "--device", "cuda", "--seconds", "2", *file("peers")]],
            environment,
        ),
        Part(
            "end-to-end",
            "the parts of a decoding step at serving size",
            120,
            [
                [
                    *(*module, "profiling.end_to_end", "--device", "cuda", "--size", "serving"),
                    *file("serving"),
                ]
            ],
            environment,
            skipped=without_models,
        ),
        Part(
            "timeline",
            "torch.profiler: where a decoding step goes",
            40,
            [
                [
                    *(*module, "profiling.torch_profile", "--device", "cuda", "--batch", "8"),
                    *("--output", str(output / "timeline")),
                ]
            ],
            environment,
            skipped=without_models,
        ),
        Part(
            "nsys",
            "Nsight Systems: the same with its ranges and kernels",
            40,
            [["profiling/nsys.sh", str(output / "nsys"), "--batch", "8"]],
            environment,
            skipped=without_models or ("" if shutil.which("nsys") else "nsys is not installed"),
        ),
    ]


def missing(*modules: str) -> str:
    """The sentence that says which are not installed; empty where all are."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""
