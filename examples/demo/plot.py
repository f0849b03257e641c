"""The demo's picture: acceptance and recovered loss of every drafter, with intervals."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdk_cuda.calibration.methods import (
    DYNAMIC,
    FIRST_ORDER,
    FULL,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
)

COLOURS = {
    FULL: "#444444",
    PRUNED: "#c1440e",
    FIRST_ORDER: "#7d6ba0",
    DYNAMIC: "#2a6fb0",
    VIRTUAL: "#8a7a1c",
    RECOMMENDED: "#17805b",
}
SHARE_RANGE = (-0.5, 2.0)  # of the right half; what lies beyond is written at its edge


def plot_data(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the picture shows: a part of each row that has a drafter."""
    shown = ("method", "keep", "head_rows", "dynamic_columns", "acceptance", "recovered")
    return [{name: row[name] for name in shown} for row in rows if row["acceptance"] is not None]


def write_plot(points: list[dict[str, Any]], title: str, path: Path) -> None:
    """Write the picture as PNG."""
    figure_of(points, title).savefig(path, dpi=150, format="png")


def figure_of(points: list[dict[str, Any]], title: str) -> Figure:
    """The picture. A `Figure` of its own needs no display and no global state."""
    figure = Figure(figsize=(10.5, 1.6 + 0.45 * len(points)), layout="constrained")
    rates, shares = figure.subplots(1, 2, sharey=True)
    rates.set_xlim(0, 1)
    shares.set_xlim(*SHARE_RANGE)
    heights = stacked([point["keep"] for point in points])
    for point, height in zip(points, heights, strict=True):
        draw(rates, point["acceptance"], height, COLOURS[point["method"]], "{:.3f}")
        if point["recovered"] is not None:
            draw(shares, point["recovered"], height, COLOURS[point["method"]], "{:.0%}")
    rates.set_yticks(heights, [label(point) for point in points])
    rates.invert_yaxis()
    shares.tick_params(left=False)
    rates.set_xlabel("acceptance, mean of $\\sum_x \\min(p(x), q(x))$")
    shares.xaxis.set_major_formatter("{x:.0%}")
    shares.set_xlabel("share of the acceptance lost to pruning that is recovered")
    for axes, marks in ((rates, [points[0]["acceptance"]["value"]]), (shares, [0.0, 1.0])):
        for mark in marks:
            axes.axvline(mark, color=COLOURS[FULL], lw=0.8, ls=":", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}; bars: 95 % intervals, bootstrap over documents", fontsize=10)
    return figure


def stacked(keeps: list[float]) -> list[float]:
    """A height for each row; rows of one pruning stand together."""
    heights = [0.0]
    for before, keep in pairwise(keeps):
        heights.append(heights[-1] + (1.0 if keep == before else 1.5))
    return heights


def label(point: dict[str, Any]) -> str:
    """A row's name."""
    share = "" if point["method"] == FULL else f" at {100 * point['keep']:.4g} %"
    columns = f" + {point['dynamic_columns']:.0f}" if point["dynamic_columns"] else ""
    return f"{point['method']}{share}\n{point['head_rows']:,}{columns} head rows"


def draw(axes: Axes, interval: dict[str, float], height: float, colour: str, form: str) -> None:
    """A value with its interval and in figures; at the edge if it lies beyond."""
    value = interval["value"]
    first, last = axes.get_xlim()
    if not first <= value <= last:
        edge, text, side = (first, "◂ {}", "left") if value < first else (last, "{} ▸", "right")
        text = text.format(form.format(value))
        axes.text(edge, height, text, ha=side, va="center", color=colour)
        return
    ends = [[abs(interval[end] - value)] for end in ("low", "high")]
    axes.errorbar(value, height, xerr=ends, fmt="o", color=colour, lw=2, capsize=4)
    axes.annotate(
        form.format(value),
        (value, height),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )
