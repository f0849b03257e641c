"""The figures of `calibrate` and `evaluate`, and what they were measured with."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers

import rdk_cuda
from rdk_cuda.calibration import Method, Window

from ..evaluation.rows import EvaluationError, Row
from ..pair.errors import InputError
from ..pair.pairs import Pair


def evaluate_pair(
    models: Pair,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    **options: Any,
) -> list[Row]:
    """`Pair.evaluate`; acceptance that is NaN is what the models made it."""
    try:
        return models.evaluate(methods, windows, **options)
    except EvaluationError as error:
        raise InputError(str(error)) from error


def versions() -> dict[str, Any]:
    """Versions, machine, threads, and how the operators were built."""
    return {
        "rdk_cuda": rdk_cuda.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "build": rdk_cuda.build_info(),
    }
