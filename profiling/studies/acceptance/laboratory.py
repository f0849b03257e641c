"""How the parts of the acceptance report (parts.py) are calibrated and measured."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from examples.demo import corpus
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.material import Material, Options, successor_counts
from rdk_cuda.calibration.methods import RECOMMENDED, VIRTUAL, Method, Pruning
from rdk_cuda.calibration.recording import Recording, record
from rdk_cuda.calibration.recording.reading import Read, read_models
from rdk_cuda.calibration.recording.windows import Window, cut_windows
from rdk_cuda.cli.models import Models
from rdk_cuda.cli.progress import Stages
from rdk_cuda.evaluation.drafters import evaluate
from rdk_cuda.evaluation.rows import Row

from .parts import PARTS, Run

__all__ = ["Laboratory", "Settings", "measure_part"]


@dataclass(frozen=True)
class Settings:
    """How much text is read, and how; `parts` by name.

    Attributes:
        calibration, held_out: positions.
        window: tokens that are read at once.
        memory: bytes of a recording.
        draft_length: K, for accepted lengths.
        options: of all methods, but that a run has its own numbers of virtual rows.
    """

    parts: Mapping[str, Sequence[Run]] = field(default_factory=lambda: PARTS)
    calibration: int = 24576
    held_out: int = 5376
    window: int = 384
    memory: int = 6 << 30
    draft_length: int = 4
    options: Options = field(default_factory=Options)
    seed: int = 0

    def of_part(self, name: str) -> dict[str, Any]:
        """What the figures of a part depend on, as it is read from JSON."""
        own = {**asdict(replace(self, parts={})), "runs": [asdict(run) for run in self.parts[name]]}
        del own["parts"]
        content: dict[str, Any] = json.loads(json.dumps(own))
        return content


class Laboratory:
    """The models and the demo's text, each read when it is first needed.

    Attributes:
        build_seconds: of every method built so far, by name and what it was built for.
    """

    def __init__(self, models: Models, settings: Settings, stages: Stages) -> None:
        self.models, self.settings, self.stages = models, settings, stages
        self.build_seconds: dict[str, float] = {}
        self._recording: tuple[tuple[object, ...], Recording] | None = None
        self._material: tuple[Run, Material] | None = None

    @cached_property
    def calibration_text(self) -> list[list[int]]:
        """Token ids of the files that the demo's models were trained on."""
        return self._encoded(corpus.training_files())

    @cached_property
    def held_out_windows(self) -> list[Window]:
        """What is evaluated on."""
        text = self._encoded(corpus.held_out_files())
        return cut_windows(text, self.settings.held_out, self.settings.window)

    def _encoded(self, files: Sequence[Path]) -> list[list[int]]:
        texts = [corpus.read_text(file) for file in files]
        ids: list[list[int]] = self.models.tokenizer(texts, verbose=False)["input_ids"]
        return ids

    def calibration_windows(self, run: Run) -> list[Window]:
        """What the models read to calibrate."""
        positions = self.settings.calibration if run.positions is None else run.positions
        return cut_windows(self.calibration_text, positions, self.settings.window)

    @cached_property
    def read(self) -> Read:
        """What both models say of a window."""
        return read_models(self.models.target, self.models.drafter)

    def recording(self, run: Run) -> Recording:
        """The recording of a run's calibration text; consecutive runs share it if they can."""
        key = (run.positions, run.recorded)
        if self._recording is None or self._recording[0] != key:
            self._recording = self._material = None  # their memory is needed for the next
            recording = record(
                self.read,
                self.calibration_windows(run),
                temperatures=run.recorded,
                memory=self.settings.memory,
                seed=self.settings.seed,
                each=self.stages.each,
            )
            self._recording = key, recording
        return self._recording[1]

    def material(self, run: Run) -> Material:
        """What a run's methods are built from; runs that follow each other share it."""
        recording = self.recording(run)
        if self._material is None or self._material[0] != run:
            read = [window.ids for window in self.calibration_windows(run)]
            counts = successor_counts(
                self.calibration_text if run.all_successors else read, recording
            )
            self._material = run, Material(recording, self.models.drafter_head, counts)
        return self._material[1]


def measure_part(name: str, laboratory: Laboratory) -> tuple[list[Row], Row]:
    """The rows of a part, and what its texts were."""
    rows, texts = [], {}
    held_out, documents = laboratory.held_out_windows, laboratory.calibration_text
    for run in laboratory.settings.parts[name]:
        rows += evaluate(
            laboratory.read,
            laboratory.models.drafter_head,
            build_methods(run, laboratory),
            held_out,
            draft_length=laboratory.settings.draft_length,
            each=laboratory.stages.each,
            seed=laboratory.settings.seed,
            pair="demo",
            corpus="code",
            calibrated_on=run.label,
        )
        texts[f"calibrated on {run.label}"] = {
            **text_facts(laboratory.calibration_windows(run)),
            "all_documents": len(documents),
            "all_tokens": sum(map(len, documents)),
        }
    return rows, {**texts, "evaluated on code": text_facts(held_out)}


def text_facts(windows: Sequence[Window]) -> Row:
    """How much was read."""
    return {
        "positions": sum(len(window.ids) for window in windows),
        "documents": len({window.document for window in windows}),
    }


def build_methods(run: Run, laboratory: Laboratory) -> dict[float, list[Method]]:
    """For each temperature the full drafter, then every method at every pruning."""
    settings = laboratory.settings
    mean_probs = laboratory.recording(run).mean_probs_at(1.0)
    methods: dict[float, list[Method]] = {temperature: [] for temperature in run.temperatures}
    for keep in run.keeps:
        vocabulary = Vocabulary.most_likely(mean_probs, max(1, round(keep * mean_probs.numel())))
        for virtual in run.virtual:
            options = replace(settings.options, virtual=virtual)
            pruning = Pruning(laboratory.material(run), vocabulary, options)
            with_rows = [name for name in run.methods if name in (VIRTUAL, RECOMMENDED)]
            names = run.methods if virtual == run.virtual[0] else with_rows
            builds = [(name, temperature) for name in names for temperature in run.temperatures]
            what = f"{run.label}: {100 * keep:.4g} % kept, {virtual} virtual rows"
            for name, temperature in laboratory.stages.each(builds, f"Calibrating: {what}"):
                start = time.perf_counter()
                method = replace(pruning.method(name, temperature), keep=keep)
                seconds = time.perf_counter() - start
                laboratory.build_seconds[f"{what}, {name}, T = {temperature:g}"] = seconds
                laboratory.stages.console.print(
                    f"{seconds:7.1f} s  {method}, T = {temperature:g}", highlight=False
                )
                methods[temperature].append(method)
    full = Method.full(laboratory.models.drafter_head)
    return {temperature: [full, *chosen] for temperature, chosen in methods.items()}
