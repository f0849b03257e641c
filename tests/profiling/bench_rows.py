"""Rows as profiling.bench writes them, made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.bench.measure import in_microseconds


def made_row(case: str = "draft virtual Vt=1000 Vd=100 B=8 float32", **values: Any) -> dict:
    """What regression reads of a row of a processor."""
    about = {
        "case": case,
        "dtype": "float32",
        "device": "cpu",
        "device_name": "a processor",
        "threads": 2,
        "load": 1.0,
        "torch": "2.13.0",
        "commit": "0123456789abcdef",
        "dirty": False,
        "run": "2026-01-02T03:04:05Z",
        "date": "2026-01-02T03:04:06Z",
        "median_us": 100.0,
        "p10_us": 95.0,
        "p90_us": 105.0,
        "rounds": 20,
    }
    return {**about, **values}


def timed(case: str, microseconds: Sequence[float], **values: Any) -> dict:
    """A row with the figures of these rounds."""
    figures = in_microseconds([time / 1e6 for time in microseconds])
    return made_row(case, **figures, rounds=len(microseconds), **values)


def write_rows(path: Path, rows: Sequence[dict]) -> Path:
    """A result file of them."""
    content = {"format": "rdk_cuda.bench", "format_version": 1, "rows": rows}
    path.write_text(json.dumps(content))
    return path
