"""How time grows with V_t, V_d, batch, K, nnz and R: exponents fitted to times at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdk_cuda.files import write_figure

from ..results import Row
from ..tables import table
from .cases import PAIR, ROWS, Case

# The middle of a grid is where the presets measure.
SIZES: dict[str, tuple[int, ...]] = {
    "target_size": (32064, 64128, 128256, 256512),
    "draft_size": (4096, 8192, 16384, 32768, 65536),
    "batch": (1, 2, 4, 8, 16, 32),
    "draft_length": (1, 2, 4, 8),
    "entries": (1, 2, 4, 8, 16),
    "rank": (1, 2, 3, 4),
}
ON_GPU = {**SIZES, "batch": (8, 16, 32, 64, 128, 256, 512)}  # on both sides of its multiprocessors
TINY: dict[str, tuple[int, ...]] = {axis: (1, 2, 3, 4) for axis in SIZES}
TINY |= {"target_size": (200, 300, 400, 600), "draft_size": (80, 100, 120, 160)}
OF_AFFINITY = ("entries", "rank")  # axes along which the affinity is ROWS
SYMBOLS = {
    "target_size": "V_t",
    "draft_size": "V_d",
    "batch": "batch",
    "draft_length": "K",
    "entries": "nnz / V_d",
    "rank": "R",
}
OPERATORS = ("draft", "verify", PAIR, "redistribute")
# Of middle lightness: a contrast of at least three with a white and with a black page.
COLOURS = {
    "draft": "#7d6ba0",
    "verify": "#c1440e",
    PAIR: "#17805b",
    "redistribute": "#2f6fa8",
    "gather_logits": "#8a7a1c",
}


def growth_cases(
    operators: Sequence[str], dtype: str, sampler: str, sizes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, str, list[Case]]]:
    """For each operator and axis its cases, all other sizes in the middle of theirs.

    Along nnz and R, which a sampler decides for itself, rows have one entry and no prior otherwise.
    """
    middle = {axis: values[len(values) // 2] for axis, values in sizes.items()}
    for operator in (each for each in OPERATORS if each in operators):
        verifies = operator in ("verify", PAIR)
        base = Case(
            operator,
            dtype,
            target_size=middle["target_size"],
            draft_size=middle["draft_size"],
            batch=middle["batch"],
            draft_length=middle["draft_length"] if verifies else 0,
            sampler=sampler,
            acceptance="high" if verifies else None,
        )
        with_rows = replace(base, sampler=ROWS, entries=1)
        for axis, values in sizes.items():
            if axis != "draft_length" or verifies:
                start = with_rows if axis in OF_AFFINITY else base
                yield operator, axis, [_resized(start, axis, value) for value in values]


def _resized(case: Case, axis: str, value: int) -> Case:
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
    lines = [
        (
            *(fit["operator"], SYMBOLS[fit["axis"]], f"{fit['sizes'][0]} .. {fit['sizes'][-1]}"),
            *(f"{fit['exponent']:.2f}", f"{fit['exponent_of_floor']:.2f}"),
        )
        for fit in fits
    ]
    titles = ("operator", "size", "from .. to", "exponent", "of the floor")
    return f"Growth: time ~ size ^ exponent\n\n{table(titles, lines, 'lllr')}"


def plot(fits: Sequence[Row], path: Path) -> bool:
    """Write the picture as PNG, a panel for each axis; False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    write_figure(figure_of(fits), path)
    return True


def figure_of(fits: Sequence[Row]) -> Any:
    """Time against size on logarithmic axes."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(fit["axis"] for fit in fits))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.8 * columns, 4.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, axis in zip(panels.flat, names, strict=False):
        draw_axis(panel, axis, [fit for fit in fits if fit["axis"] == axis])
    for panel in panels[:, 0]:
        panel.set_ylabel("median time, microseconds")
    first = fits[0]
    figure.suptitle(f"{first['device_name']}, {first['dtype']}, {first['sampler']}", fontsize=10)
    return figure


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
