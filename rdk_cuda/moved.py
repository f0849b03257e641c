"""Names that have moved: importing an old one raises an error that has the new one."""

from __future__ import annotations

import sys
from typing import Any

MOVED = {
    "rdk_cuda.calibration.clusters": "rdk_cuda.recipes.stages.clusters",
    "rdk_cuda.calibration.lengths": "rdk_cuda.recipes.stages.lengths",
    "rdk_cuda.calibration.lifted": "rdk_cuda.recipes.stages.lifted",
    "rdk_cuda.calibration.methods": "rdk_cuda.recipes.stages.pruning",
    "rdk_cuda.calibration.reading": "rdk_cuda.decoding.models",
    "rdk_cuda.calibration.recording": "rdk_cuda.recipes.recording",
    "rdk_cuda.calibration.screens": "rdk_cuda.recipes.stages.screen",
    "rdk_cuda.calibration.tokenizers": "rdk_cuda.recipes.stages.tokenizers",
    "rdk_cuda.calibration.tuning": "rdk_cuda.recipes.choose",
    "rdk_cuda.calibration.virtual": "rdk_cuda.recipes.stages.virtual",
    "rdk_cuda.cli.progress": "rdk_cuda.recipes.progress",
    "rdk_cuda.evaluation.acceptance": "rdk_cuda.recipes.report.evaluation",
    "rdk_cuda.evaluation.plots": "rdk_cuda.recipes.report.plots",
    "rdk_cuda.evaluation.rows": "rdk_cuda.recipes.report.rows",
    "rdk_cuda.evaluation.speed": "rdk_cuda.recipes.timing",
    "rdk_cuda.evaluation.table": "rdk_cuda.recipes.report.table",
    "rdk_cuda.evaluation.timing": "rdk_cuda.recipes.timing",
    "rdk_cuda.training.distill": "rdk_cuda.recipes.stages.train.distill",
    "rdk_cuda.training.losses": "rdk_cuda.recipes.stages.train.losses",
    "rdk_cuda.training.parts": "rdk_cuda.recipes.stages.train.parts",
    "rdk_cuda.decoding.Cascade": "rdk_cuda.labs.cascades.Cascade",
    "rdk_cuda.decoding.lengths.Confidence": "rdk_cuda.labs.length_rules.Confidence",
    "rdk_cuda.decoding.lengths.EntropyBound": "rdk_cuda.labs.length_rules.EntropyBound",
    "rdk_cuda.decoding.cascade": "rdk_cuda.labs.cascades",
    "rdk_cuda.decoding.parallel": "rdk_cuda.labs.parallel_decoder",
    "rdk_cuda.decoding.string_rejection": "rdk_cuda.labs.string_rejection",
    "rdk_cuda.integrations.block_drafters.Confidence": "rdk_cuda.labs.length_rules.OwnConfidence",
    "rdk_cuda.integrations.mtp.DeepMtpDrafter": "rdk_cuda.labs.deep_heads.DeepMtpDrafter",
    "rdk_cuda.integrations.sglang.parents_of": "rdk_cuda.labs.sglang_trees.parents_of",
    "rdk_cuda.pair": "rdk_cuda.recipes.inputs",
    "rdk_cuda.integrations.huggingface.SteeredModel": "rdk_cuda.labs.steering.SteeredModel",
    "rdk_cuda.integrations.huggingface.Steering": "rdk_cuda.labs.steering.Steering",
    "rdk_cuda.integrations.huggingface.load_steering": "rdk_cuda.labs.steering.load_steered",
    "rdk_cuda.integrations.huggingface.steered_read": "rdk_cuda.labs.steering.steered_read",
    "rdk_cuda.integrations.huggingface.steering": "rdk_cuda.labs.steering",
}
"""The old dotted name of a module, or of a name in one, and the new one."""


def attribute(module: str, name: str) -> Any:
    """Raise for a name that a module does not have; as its `__getattr__`."""
    if new := MOVED.get(f"{module}.{name}"):
        raise ImportError(f"{module}.{name} has moved to {new}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _Moved:
    """Answer after all finders of modules, also where `from package import name` finds none."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in MOVED:
            raise ImportError(f"{name} has moved to {MOVED[name]}", name=name)


sys.meta_path.append(_Moved)  # type: ignore[arg-type]
