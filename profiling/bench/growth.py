"""How time grows with V_t, V_d, batch and K: exponents fitted to times at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdk_cuda.recipes.report.written import write_figure

from ..results import Row
from ..tables import table
from .cases import PAIR, Case

# The middle of a grid is where the presets measure.
SIZES: dict[str, tuple[int, ...]] = {
    "target_size": (32064, 64128, 128256, 256512),
    "draft_size": (4096, 8192, 16384, 32768, 65536),
    "batch": (1, 2, 4, 8, 16, 32),
    "draft_length": (1, 2, 4, 8),
}
ON_GPU = {**SIZES, "batch": (8, 16, 32, 64, 128, 256, 512)}  # on both sides of its multiprocessors
SYMBOLS = {"target_size": "V_t", "draft_size": "V_d", "batch": "batch", "draft_length": "K"}
OPERATORS = ("draft", "verify", PAIR, "redistribute")
# Of middle lightness: a contrast of at least three with a white and with a black page.
COLOURS = {
    "draft": "#7d6ba0",
    "verify": "#c1440e",
    PAIR: "#17805b",
    "redistribute": "#2f6fa8",
    "gather_logits": "#8a7a1c",
}
KEPT = (
    *("run", "date", "load", "command", "dtype", "sampler"),
    *("device", "device_name", "threads", "torch", "commit", "dirty"),
)


def growth_cases(
    operators: Sequence[str], dtype: str, sampler: str, sizes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, str, list[Case]]]:
    """The cases for each operator and axis, with all other sizes in the middle of their grids."""
    middle = {axis: values[len(values) // 2] for axis, values in sizes.items()}
    for operator in (each for each in OPERATORS if each in operators):
        base = _resized(Case(operator, dtype, sampler=sampler, acceptance="high"), middle)
        if not base.verifies:
            base = replace(base, draft_length=0, acceptance=None)
        for axis, values in sizes.items():
            if axis != "draft_length" or base.verifies:
                yield operator, axis, [_resized(base, {axis: value}) for value in values]


def _resized(case: Case, sizes: dict[str, Any]) -> Case:
    return replace(case, **sizes)


def measure_growth(
    operator: str, axis: str, cases: Sequence[Case], measure: Callable[[Case], Row]
) -> Row:
    """The times along one axis and the exponent fitted to them, as a row."""
    sizes, rows = [getattr(case, axis) for case in cases], [measure(case) for case in cases]
    times = [row["median_us"] for row in rows]
    fixed = {name: getattr(cases[0], name) for name in SIZES if name != axis}
    return {
        "operator": operator,
        "axis": axis,
        "sizes": sizes,
        "median_us": times,
        "exponent": fitted_exponent(sizes, times),
        "exponent_of_floor": fitted_exponent(sizes, [row["floor_us"] for row in rows]),
        "fixed": {name: value for name, value in fixed.items() if value},
        **{name: rows[0][name] for name in KEPT},
    }


def fitted_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size, least squares."""
    if len(sizes) < 4 or len(sizes) != len(times):
        raise ValueError(
            f"fitted_exponent: got {len(sizes)} sizes; needs 4 or more, a time for each"
        )
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    covariance = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / math.fsum((a - mean_x) ** 2 for a in x)


def summary(fits: Sequence[Row]) -> str:
    """A line for each fit."""
    lines = [
        (
            *(fit["operator"], SYMBOLS[fit["axis"]], f"{fit['sizes'][0]} .. {fit['sizes'][-1]}"),
            *(f"{fit['exponent']:.2f}", f"{fit['exponent_of_floor']:.2f}"),
        )
        for fit in fits
    ]
    titles = ("operator", "size", "from .. to", "exponent", "of the floor")
    return f"Growth: time ~ size ^ exponent\n\n{table(titles, lines, 'lllr')}"


def plot(fits: Sequence[Row], path: Path) -> None:
    """Time against size on logarithmic axes, as PNG, a panel for each axis."""
    from matplotlib.figure import Figure

    if not fits:
        return
    names = list(dict.fromkeys(fit["axis"] for fit in fits))
    figure = Figure(figsize=(3.8 * len(names), 4.2), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, names, strict=True):
        draw_axis(panel, axis, [fit for fit in fits if fit["axis"] == axis])
    panels[0].set_ylabel("median time, microseconds")
    first = fits[0]
    figure.suptitle(f"{first['device_name']}, {first['dtype']}, {first['sampler']}", fontsize=10)
    write_figure(figure, path)


def draw_axis(panel: Any, axis: str, fits: Sequence[Row]) -> None:
    """A panel: the operators' times along one axis."""
    for fit in fits:
        colour = COLOURS[fit["operator"]]
        label = f"{fit['operator']}: {fit['exponent']:.2f}"
        panel.loglog(fit["sizes"], fit["median_us"], "o-", ms=4, color=colour, label=label)
    sizes = sorted({size for fit in fits for size in fit["sizes"]})
    panel.set_xlabel(SYMBOLS[axis])
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.tick_params(axis="x", labelrotation=45, which="major")
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
    panel.legend(**above, fontsize=8, ncols=2, title="exponents")
    panel.spines[["top", "right"]].set_visible(False)
