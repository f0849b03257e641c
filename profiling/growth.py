"""How time grows with V_t, V_d, batch and K: exponents fitted to times at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdk_cuda.commands.files import write_figure

from .cases import PAIR, Case
from .results import Row

# Every axis doubles: the middle of a grid is where the presets measure.
SIZES: dict[str, tuple[int, ...]] = {
    "target_size": (32064, 64128, 128256, 256512),
    "draft_size": (4096, 8192, 16384, 32768, 65536),
    "batch": (2, 4, 8, 16, 32),
    "draft_length": (1, 2, 4, 8),
}
TINY: dict[str, tuple[int, ...]] = {
    "target_size": (200, 300, 400, 600),
    "draft_size": (80, 100, 120, 160),
    "batch": (1, 2, 4, 8),
    "draft_length": (1, 2, 3, 4),
}
SYMBOLS = {"target_size": "V_t", "draft_size": "V_d", "batch": "batch", "draft_length": "K"}
COLOURS = {"draft": "#7d6ba0", "verify": "#c1440e", PAIR: "#17805b", "redistribute": "#2f6fa8"}
OPERATORS = tuple(COLOURS)


def growth_cases(
    operators: Sequence[str], dtype: str, sampler: str, sizes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, str, list[Case]]]:
    """For each operator and axis its cases, all other sizes in the middle of theirs."""
    for operator in (each for each in OPERATORS if each in operators):
        verifies = operator in ("verify", PAIR)
        base = Case(
            operator,
            dtype,
            target_size=sizes["target_size"][2],
            draft_size=sizes["draft_size"][2],
            batch=sizes["batch"][2],
            draft_length=sizes["draft_length"][2] if verifies else 0,
            sampler=sampler,
            acceptance="high" if verifies else None,
        )
        for axis, values in sizes.items():
            if axis != "draft_length" or verifies:
                yield operator, axis, [resized(base, axis, value) for value in values]


def resized(case: Case, axis: str, value: int) -> Case:
    """A case with one size changed."""
    change: dict[str, Any] = {axis: value}
    return replace(case, **change)


def measure_growth(
    operator: str, axis: str, cases: Sequence[Case], measure: Callable[[Case], Row]
) -> dict[str, Any]:
    """The times along one axis and the exponent fitted to them, as it stands in a result file."""
    sizes, rows = [getattr(case, axis) for case in cases], [measure(case) for case in cases]
    times = [row["median_us"] for row in rows]
    fixed = {name: getattr(cases[0], name) for name in SIZES if name != axis}
    kept = (
        "run",
        "dtype",
        "sampler",
        "device",
        "device_name",
        "threads",
        "torch",
        "commit",
        "dirty",
    )
    return {
        "operator": operator,
        "axis": axis,
        "sizes": sizes,
        "median_us": times,
        "exponent": fitted_exponent(sizes, times),
        "exponent_of_floor": fitted_exponent(sizes, [row["floor_us"] for row in rows]),
        "fixed": {name: value for name, value in fixed.items() if value},
        **{name: rows[0][name] for name in kept},
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
    lines = ["Growth: time ~ size ^ exponent (that of the floor in brackets)"]
    for fit in fits:
        span = f"{fit['sizes'][0]} .. {fit['sizes'][-1]}"
        exponents = f"{fit['exponent']:5.2f} ({fit['exponent_of_floor']:.2f})"
        lines.append(f"{fit['operator']:<13} {SYMBOLS[fit['axis']]:<6} {span:<17} {exponents}")
    return "\n".join(lines)


def plot(fits: Sequence[Row], path: Path) -> bool:
    """Write the picture as PNG, a panel for each axis; False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(fit["axis"] for fit in fits))
    figure = Figure(figsize=(3.8 * len(axes_names), 4.2), layout="constrained")
    panels = figure.subplots(1, len(axes_names), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes_names, strict=True):
        for fit in (fit for fit in fits if fit["axis"] == axis):
            label = f"{fit['operator']}: {fit['exponent']:.2f}"
            colour = COLOURS[fit["operator"]]
            panel.loglog(fit["sizes"], fit["median_us"], "o-", ms=4, color=colour, label=label)
        panel.set_xlabel(SYMBOLS[axis])
        panel.set_xticks(fits_sizes(fits, axis), [f"{size:,}" for size in fits_sizes(fits, axis)])
        panel.tick_params(axis="x", labelrotation=45, which="major")
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=8, title="exponents", ncols=2
        )
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("median time, microseconds")
    figure.suptitle(
        f"{fits[0]['device_name']}, {fits[0]['dtype']}, {fits[0]['sampler']}", fontsize=10
    )
    write_figure(figure, path)
    return True


def fits_sizes(fits: Sequence[Row], axis: str) -> list[int]:
    """All sizes along an axis, ascending."""
    return sorted({size for fit in fits if fit["axis"] == axis for size in fit["sizes"]})
