"""What `make gpu-measure` runs after a `make gpu-check` that passed: figures, within limits."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machine import ROOT
from .running import Part

MODELS = ("transformers", "sklearn", "rich")  # what decoding with the demo's models needs
# The peers of profiling.bench and of profiling.peers, without those that take minutes: a
# first torch.compile, and Transformers, which samples one sequence after the other. They are
# written down here because profiling's own list needs an `import torch`.
PLAIN = ("eager", "sparse", "split", "in-order", "queue", "early")
PLAIN_SAMPLERS = (
    *("eager", "eager-gather", "scatter-logits", "sparse", "flashinfer", "vllm", "vllm-v2"),
    *("sglang-chain", "sglang-target-only", "cupy"),
)
COMPILED = ("compiled",)
SLOW_SAMPLERS = ("compiled", "compiled-gather", "transformers")


@dataclass(frozen=True)
class Commands:
    """What measures, on the GPU; in a dry run on the CPU, at the smallest sizes."""

    output: Path
    dry_run: bool

    def program(self, *program: str, usual: str, dry: str) -> list[str]:
        device = "cpu" if self.dry_run else "cuda"
        options = (dry if self.dry_run else usual).split()
        return [sys.executable, *program, "--device", device, *options]

    def file(self, name: str) -> list[str]:
        return ["--output", str(self.output / f"{name}.json")]

    def bench(self, name: str, preset: str, *peers: str) -> list[str]:
        usual = f"--preset {preset} --seconds 0.5"
        program = self.program("-m", "profiling.bench", usual=usual, dry="--preset tiny")
        return [*program, *self.file(name), "--peers", *peers]

    def compare(self, name: str, *peers: str) -> list[str]:
        module = ("-m", "profiling.peers")
        program = self.program(*module, usual="--seconds 2", dry="--preset tiny --draws 1024")
        return [*program, *self.file(name), "--peers", *peers]

    def end_to_end(self) -> list[str]:
        module = ("-m", "profiling.studies.end_to_end")
        program = self.program(
            *module, usual="--size serving", dry="--size tiny --batch 1 --rounds 3"
        )
        return [*program, *self.file("end_to_end")]

    def timeline(self) -> list[str]:
        module = ("-m", "profiling.nsight.torch_profile")
        program = self.program(*module, usual="--batch 8", dry="--batch 1 --tokens 8")
        return [*program, "--output", str(self.output / "timeline")]

    def without(self, profiler: str) -> str:
        """Why the profiler cannot run; empty where it can."""
        if self.dry_run:
            return f"{profiler} profiles GPUs alone"
        return "" if shutil.which(profiler) else f"{profiler} is not installed"


def measurements(machine: dict[str, Any], output: Path) -> list[Part]:
    """For this machine, with the operators built already; results go to the folder `output`."""
    commands = Commands(output, machine.get("dry_run", False))
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHON": sys.executable}
    without_models = missing(*MODELS)

    def part(name: str, what: str, limit: int, command: list[str], skipped: str = "") -> Part:
        by_name = what.endswith("by name")
        return Part(name, what, limit, [command], environment, skipped, by_name)

    return [
        part(
            "serving",
            "the shapes of serving, next to plain PyTorch",
            100,
            commands.bench("serving", "serving", *PLAIN),
        ),
        part(
            "variants",
            "another temperature, other dtypes, odd vocabularies",
            40,
            commands.bench("variants", "variants", "split", "in-order", "queue"),
        ),
        part(
            "kernels",
            "Nsight Compute: what bounds each kernel",
            80,
            ["profiling/nsight/ncu.sh", str(output / "ncu")],
            commands.without("ncu"),
        ),
        part(
            "peers",
            "other samplers of a decoding step, tested and timed",
            70,
            commands.compare("peers", *PLAIN_SAMPLERS),
        ),
        part(
            "end-to-end",
            "the parts of a decoding step at serving size",
            60,
            commands.end_to_end(),
            without_models,
        ),
        part(
            "timeline",
            "torch.profiler: where a decoding step goes",
            30,
            commands.timeline(),
            without_models,
        ),
        part(
            "nsys",
            "Nsight Systems: the same with its ranges and kernels",
            40,
            ["profiling/nsight/nsys.sh", str(output / "nsys"), "--batch", "8"],
            without_models or commands.without("nsys"),
        ),
        part("growth", "how time grows; by name", 300, commands.bench("growth", "growth")),
        part(
            "compiled",
            "the shapes of serving next to torch.compile; by name",
            400,
            commands.bench("compiled", "serving", *COMPILED),
        ),
        part(
            "slow-peers",
            "samplers under torch.compile, and Transformers'; by name",
            400,
            commands.compare("slow-peers", *SLOW_SAMPLERS),
        ),
    ]


def missing(*modules: str) -> str:
    """The sentence that says which are not installed; empty where all are."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""
