"""The README's chart: what sampling a step takes, and how much acceptance comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KEY = "Source"  # a text of the PNG file; the figures that were drawn
_NAMES = {"eager": "PyTorch, eager", "compiled": "torch.compile", "ours": "rdk_cuda"}
_COLOURS = {
    "virtual tokens": "#9ecae1",
    "dynamic tokens": "#4292c6",
    "virtual+dynamic": "#08519c",
}
_GREY, _OURS = "#b0b0b0", "#08519c"


def source_of(file: Path) -> dict[str, Any] | None:
    """The figures that a chart was drawn from; None if there is no chart."""
    from PIL import Image

    if not file.is_file():
        return None
    with Image.open(file) as image:
        text = image.info.get(_KEY)
    figures: dict[str, Any] | None = None if text is None else json.loads(text)
    return figures


def draw(figures: dict[str, Any], file: Path) -> None:
    """Draws the figures into a PNG file, which carries them as text too."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(10, 3.2), dpi=130, layout="constrained")
    times, shares = chart.subplots(1, 2, width_ratios=[2, 3])
    _draw_times(times, figures)
    _draw_shares(shares, figures)
    chart.savefig(file, metadata={_KEY: json.dumps(figures), "Software": None})


def _draw_times(axes: Any, figures: dict[str, Any]) -> None:
    times = figures["milliseconds"]
    bars = axes.barh(
        [_NAMES[name] for name in times],
        list(times.values()),
        color=[_OURS if name == "ours" else _GREY for name in times],
    )
    axes.bar_label(bars, [f"{time:g} ms" for time in times.values()], padding=4)
    axes.set_xlim(0, 1.25 * max(times.values()))
    axes.set_xticks([])
    axes.set_title("Sampling one decoding step, batch 8 (CPU)", fontsize=10, loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False)


def _draw_shares(axes: Any, figures: dict[str, Any]) -> None:
    width = 0.27
    for place, (method, shares) in enumerate(figures["recovered"].items()):
        at = [column + (place - 1) * width for column in range(len(shares))]
        errors = [
            [value - low for value, low, _ in shares],
            [high - value for value, _, high in shares],
        ]
        axes.bar(
            at,
            [value for value, _, _ in shares],
            width,
            yerr=errors,
            error_kw={"elinewidth": 1, "ecolor": "#404040"},
            color=_COLOURS[method],
            label=method,
        )
    names = [
        f"{100 * keep:g} % kept\nT = {temperature:g}" for temperature, keep in figures["columns"]
    ]
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.axhline(100, color="#404040", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 118)
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"], fontsize=9)
    axes.set_title(
        "Acceptance lost to pruning that comes back (demo models)", fontsize=10, loc="left"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
