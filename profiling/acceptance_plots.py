"""The plots of the acceptance report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rdk_cuda.commands.evaluation_files import Row
from rdk_cuda.commands.evaluation_plots import (
    acceptance_figure,
    methods_figure,
    virtual_rows_figure,
)
from rdk_cuda.commands.files import write_figure

from .acceptance_runs import DEMO, SHARP

__all__ = ["figures", "write_plots"]


def write_plots(folder: Path, parts: Mapping[str, Sequence[Row]]) -> list[str]:
    """Every plot whose part is there, as PNG; returns the files' names."""
    drawn = figures(parts)
    for name, figure in drawn.items():
        write_figure(figure, folder / f"{name}.png")
    return [f"{name}.png" for name in drawn]


def figures(parts: Mapping[str, Sequence[Row]]) -> dict[str, Figure]:
    """Every plot whose part is there, by name."""
    drawn = {}
    for name in ("methods", "temperatures", "sharp"):
        if name in parts:
            pair = SHARP if name == "sharp" else DEMO
            title = f"{pair} pair, held-out code"
            drawn[name] = acceptance_figure(parts[name], title)
    for temperature in (1.0, 0.7):
        if "methods" in parts and "sharp" in parts:
            keeps = {row["keep"] for row in parts["sharp"]}
            rows = [
                row
                for row in (*parts["methods"], *parts["sharp"])
                if row["temperature"] == temperature and row["keep"] in keeps
            ]
            title = f"Held-out code, T = {temperature:g}"
            drawn[f"pairs-{temperature:g}"] = methods_figure(rows, title)
        rows = [row for row in parts.get("virtual", ()) if row["temperature"] == temperature]
        if rows:
            title = f"Demo pair, held-out code, T = {temperature:g}"
            drawn[f"virtual-{temperature:g}"] = virtual_rows_figure(rows, title)
    return drawn
