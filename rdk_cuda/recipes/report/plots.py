"""The picture of an evaluation; its data is in the JSON and CSV files next to it.

Colours are those of Okabe and Ito, which people with colour blindness can tell apart. Methods of
one family share a colour and have different marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..stages import pruning as names
from .rows import Row

BLACK, GREY = "#000000", "#777777"
ORANGE, GREEN, BLUE = "#E69F00", "#009E73", "#0072B2"
VERMILLION = "#D55E00"


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    marker: str = "o"
    line: str = "-"


STYLES = {
    names.PRUNED: Style(BLACK, "s"),
    names.DYNAMIC: Style(BLUE, "D"),
    names.VIRTUAL: Style(ORANGE),
    names.RECOMMENDED: Style(GREEN, "*"),
}
OTHER = Style(VERMILLION, "v", ":")
WHOLE = (names.FULL, names.LIFTED)
WITH_INTERVALS = (names.PRUNED, names.RECOMMENDED)


def acceptance_figure(rows: Sequence[Row], title: str) -> Figure:
    """Acceptance against the share of the vocabulary that is kept, a panel for each temperature.

    Args:
        rows: one row for each method, pruning and temperature.
    """
    temperatures = sorted({row["temperature"] for row in rows})
    columns, lines = min(2, len(temperatures)), -(-len(temperatures) // 2)
    size = max(7.0, 1.6 + 5 * columns), 1.2 + 4 * lines
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(temperatures) :]:
        axes.set_visible(False)
    for axes, temperature in zip(panels, temperatures, strict=False):
        draw_panel(axes, [row for row in rows if row["temperature"] == temperature])
        axes.set_title("greedy" if temperature == 0 else f"T = {temperature:g}", fontsize=10)
    figure.supylabel("acceptance, mean of $\\sum_x \\min(p(x), q(x))$", fontsize=10)
    draw_legend(figure, panels)
    if any(has_interval(row) for row in rows):
        title += "; shaded and bars: 95 % intervals, bootstrap over documents"
    figure.suptitle(title, fontsize=10)
    return figure


def draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    pruned = [row for row in rows if row["method"] not in WHOLE]
    for row in rows:
        if row["method"] in WHOLE:
            axes.axhline(row["acceptance"], color=GREY, ls="--", lw=1.2, label=row["method"])
            if has_interval(row):
                around = row["acceptance_low"], row["acceptance_high"]
                axes.axhspan(*around, color=GREY, alpha=0.12, lw=0)
    for method in dict.fromkeys([*STYLES, *(row["method"] for row in pruned)]):
        if points := [row for row in pruned if row["method"] == method]:
            draw_method(axes, points, method)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("vocabulary kept")
    axes.set_xscale("log")
    keeps = sorted({row["keep"] for row in pruned})
    axes.set_xticks(keeps, [f"{100 * keep:.3g} %" for keep in keeps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)


def draw_method(axes: Axes, rows: list[Row], method: str) -> None:
    style, main = STYLES.get(method, OTHER), method in STYLES
    rows = sorted(rows, key=lambda row: row["keep"])
    keeps = [row["keep"] for row in rows]
    values, lows, highs = (
        [number(row[f"acceptance{end}"]) for row in rows] for end in ("", "_low", "_high")
    )
    axes.plot(
        keeps,
        values,
        color=style.colour,
        marker=style.marker,
        ls=style.line,
        lw=1.8 if main else 1.1,
        ms=9 if style.marker == "*" else 5,
        label=method,
        zorder=3 if main else 2,
    )
    if method in WITH_INTERVALS:
        axes.vlines(keeps, lows, highs, color=style.colour, alpha=0.5)


def draw_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=min(len(entries), max(3, round(figure.get_figwidth() / 2.2))),
        fontsize=8,
        frameon=False,
    )


def has_interval(row: Row) -> bool:
    return not math.isnan(number(row["acceptance_low"]) + number(row["acceptance_high"]))


def number(value: float | None) -> float:
    return math.nan if value is None else float(value)
