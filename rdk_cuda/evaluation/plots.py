"""Pictures of an evaluation; their data is in the JSON and CSV files next to them.

Colours are those of Okabe and Ito, which people who see few colours can tell apart; methods of one
family share a colour and differ in their marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rdk_cuda.calibration import methods as names

from .rows import Row

__all__ = ["acceptance_figure"]

BLACK, GREY = "#000000", "#777777"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE, OLIVE = "#D55E00", "#CC79A7", "#8A7A1C"


class Style(NamedTuple):
    """How a method is drawn everywhere."""

    colour: str
    marker: str = "o"
    line: str = "-"


STYLES = {
    names.PRUNED: Style(BLACK, "s"),
    names.FIRST_ORDER: Style(VERMILLION, "v", ":"),
    names.SECOND_MOMENT: Style(VERMILLION, "^", "--"),
    names.COVARIANCE: Style(VERMILLION, "<", "-."),
    names.LOW_RANK: Style(OLIVE, "P", "--"),
    names.DYNAMIC: Style(BLUE, "D"),
    names.VIRTUAL: Style(ORANGE),
    names.RECOMMENDED: Style(GREEN, "*"),
}
ENDS = (names.PRUNED, names.RECOMMENDED)  # whose bands are drawn where there are many lines


def acceptance_figure(rows: Sequence[Row], title: str) -> Figure:
    """Acceptance against the share of the vocabulary that is kept, a panel for each temperature.

    Args:
        rows: of one pair and corpus; one row for each method, pruning and temperature.
    """
    temperatures = sorted({row["temperature"] for row in rows})
    figure, panels = panels_of(len(temperatures), columns=2, width=5, height=4)
    for axes, temperature in zip(panels, temperatures, strict=True):
        here = [row for row in rows if row["temperature"] == temperature]
        pruned = [row for row in here if row["method"] != names.FULL]
        ceiling = [row["acceptance"] for row in here if row["method"] == names.FULL]
        for row in here:
            if row["method"] == names.FULL:
                axes.axhline(row["acceptance"], color=GREY, ls="--", lw=1.2, label=names.FULL)
                if known(row, "acceptance"):
                    around = row["acceptance_low"], row["acceptance_high"]
                    axes.axhspan(*around, color=GREY, alpha=0.12, lw=0)
        shown = [row for row in here if row["method"] in (names.FULL, *ENDS)]
        ends = [
            row[f"acceptance_{end}"]
            for row in shown
            for end in ("low", "high")
            if known(row, "acceptance")
        ]
        lowest = lowest_shown(pruned, [*ceiling, *ends])
        below = []
        for method, points in by_method(pruned):
            if max(point["acceptance"] for point in points) < lowest:
                below.append(f"{method}: {spread(points)}")
                continue
            draw_line(axes, points, "keep", "acceptance", method, bands=ENDS)
        highest = max([*ceiling, *ends, *(row["acceptance"] for row in pruned)])
        axes.set_ylim(lowest, highest + 0.06 * (highest - lowest))
        if below:
            text = "below: " + "\n".join(below)
            axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", fontsize=8)
        axes.set_title("greedy" if temperature == 0 else f"T = {temperature:g}", fontsize=10)
        axes.set_xlabel("vocabulary kept")
        keep_ticks(axes, sorted({row["keep"] for row in pruned}))
    figure.supylabel("acceptance, mean of $\\sum_x \\min(p(x), q(x))$", fontsize=10)
    legend_below(figure, panels)
    caption = "shaded and bars: 95 % intervals, bootstrap over documents"
    figure.suptitle(with_caption(title, caption, rows, "acceptance"), fontsize=10)
    return figure


def with_caption(title: str, caption: str, rows: Sequence[Row], figure: str) -> str:
    """A title that explains intervals where there are any."""
    return f"{title}; {caption}" if any(known(row, figure) for row in rows) else title


def known(row: Row, figure: str) -> bool:
    """Whether a row's figure has an interval."""
    return not math.isnan(number(row[f"{figure}_low"]) + number(row[f"{figure}_high"]))


def panels_of(
    count: int, *, columns: int, width: float, height: float
) -> tuple[Figure, list[Axes]]:
    """A figure of its own, which needs no display and no global state, and its panels.

    Args:
        columns: how many panels stand side by side at most.
        width, height: of a panel in inches.
    """
    columns = max(1, min(columns, count))
    lines = max(1, -(-count // columns))
    size = max(7.0, 1.6 + width * columns), 1.2 + height * lines
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels[: max(1, count)]


def by_method(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each method, methods in the order of `STYLES`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["method"], []).append(row)
    places = {method: place for place, method in enumerate(STYLES)}
    return sorted(groups.items(), key=lambda group: places.get(group[0], len(places)))


def draw_line(
    axes: Axes, rows: list[Row], x: str, y: str, label: str, *, bands: Sequence[str]
) -> None:
    """A line through a method's rows; with its intervals if it is among `bands`.

    A band needs two places: at a single one the interval is a bar.
    """
    style = STYLES.get(label, Style(GREY))
    rows = sorted(rows, key=lambda row: row[x])
    places = [row[x] for row in rows]
    values, lows, highs = ([number(row[y + end]) for row in rows] for end in ("", "_low", "_high"))
    main = label in (names.DYNAMIC, names.VIRTUAL, names.RECOMMENDED, names.PRUNED)
    axes.plot(
        places,
        values,
        color=style.colour,
        marker=style.marker,
        ls=style.line,
        lw=1.8 if main else 1.1,
        ms=9 if style.marker == "*" else 5,
        label=label,
        zorder=3 if main else 2,
    )
    if label in bands and len(places) > 1:
        axes.fill_between(places, lows, highs, color=style.colour, alpha=0.12, lw=0)
    elif label in bands and known(rows[0], y):
        ends = [[abs(values[0] - lows[0])], [abs(highs[0] - values[0])]]
        axes.errorbar(places, values, yerr=ends, fmt="none", ecolor=style.colour, capsize=4)


def lowest_shown(pruned: Sequence[Row], others: Sequence[float]) -> float:
    """Where the axis begins: a little below what pruning alone leaves."""
    alone = [row["acceptance"] for row in pruned if row["method"] == names.PRUNED]
    values = alone or [row["acceptance"] for row in pruned]
    lowest, highest = float(min([*values, *others])), float(max([*values, *others]))
    return lowest - 0.15 * (highest - lowest) - 0.005


def spread(rows: Sequence[Row]) -> str:
    """The range of their acceptance in figures."""
    values = sorted(f"{row['acceptance']:.2f}" for row in rows)
    return values[0] if values[0] == values[-1] else f"{values[0]}–{values[-1]}"


def keep_ticks(axes: Axes, keeps: Sequence[float]) -> None:
    """A logarithmic axis with the prunings as its marks."""
    axes.set_xscale("log")
    axes.set_xticks(keeps, [f"{100 * keep:.3g} %" for keep in keeps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = min(len(entries), max(3, round(figure.get_figwidth() / 2.2)))
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize=8,
            frameon=False,
        )


def number(value: Any) -> float:
    """NaN for what is not known, which is not drawn."""
    return math.nan if value is None else float(value)
