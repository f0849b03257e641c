"""Rows of end_to_end.py as a page of Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rdk_cuda.commands.files import write_figure

from .command_line import disturbance, origin
from .decoding_steps import BODY, CACHE, DRAFT, HEAD, PARTS, TARGET, VERIFY
from .markdown import table
from .results import Row
from .table import figure

COLOURS = {
    BODY: "#9aa5b1",
    HEAD: "#c1440e",
    DRAFT: "#e0a458",
    TARGET: "#2f6fa8",
    VERIFY: "#17805b",
    CACHE: "#d0d0d0",
}


def page(rows: Sequence[Row]) -> str:
    """A table for each batch of each run, and how to read it."""
    lines = ["# A decoding step and its parts"]
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        lines += ["", *preamble(own[-1])]
        for batch in dict.fromkeys(row["batch"] for row in own):
            lines += ["", *section([row for row in own if row["batch"] == batch])]
    return "\n".join([*lines, ""])


def preamble(row: Row) -> list[str]:
    """Where, when, and what is measured and what is computed."""
    lines = [
        origin(row),
        "",
        f"Models: {row['models']}; V_t {row['target_size']:,}, {row['context']} tokens of context, "
        f"K = {row['draft_length']}, temperature 1. Milliseconds, medians of {row['rounds']} "
        "rounds, all rows in turn; the shares in brackets are those of the sum of the parts. "
        f"{BODY} and {HEAD} are {row['draft_length']} passes, {DRAFT} and {VERIFY} sampling, by "
        "PyTorch in as few operations as it takes or by our operators; "
        f"{CACHE} is what a cache costs that rolls back by sequence.",
        "",
        "Accepted is not these models' doing: it is the accepted length that calibration measured "
        f"for the head's method on the demo's models ({row['accepted_from']}). What is verified "
        "is made to be accepted that far, as the time depends on it, and tokens a second are "
        "(1 + accepted) × batch / time of a step.",
    ]
    return [*lines, *disturbance(row, row["load"])]


def section(rows: Sequence[Row]) -> list[str]:
    """One batch."""
    header = ("", "head rows", "sampling", *PARTS, "step", "accepted", "tokens / s", "× alone")
    return [
        f"## Batch {rows[0]['batch']}",
        "",
        table(header, map(cells, rows), "lrlr"),
    ]


def cells(row: Row) -> list[str]:
    """In the order of the header."""
    parts = [
        f"{figure(1000 * row['parts'][part])} ({row['shares'][part]:.0%})"
        if part in row["parts"]
        else ""
        for part in PARTS
    ]
    return [
        row["head"],
        f"{row['head_rows']:,}",
        row["sampling"],
        *parts,
        figure(1000 * row["step_seconds"]),
        f"{row['accepted_length']:.2f}",
        figure(row["tokens_per_second"]),
        f"{row['speed_up']:.2f}",
    ]


def plot(rows: Sequence[Row], path: Path) -> bool:
    """Write stacked bars as PNG, a panel for each batch; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    batches = list(dict.fromkeys(row["batch"] for row in rows))
    count = max(sum(row["batch"] == batch for row in rows) for batch in batches)
    drawing = Figure(figsize=(6.5 * len(batches), 1.9 + 0.34 * count), layout="constrained")
    panels = drawing.subplots(1, len(batches), squeeze=False)[0]
    for panel, batch in zip(panels, batches, strict=True):
        own = [row for row in rows if row["batch"] == batch]
        names = [f"{row['head']}, {row['sampling']}" for row in own]
        left = [0.0] * len(own)
        for part in PARTS:
            widths = [1000 * row["parts"].get(part, 0.0) for row in own]
            panel.barh(names, widths, left=left, color=COLOURS[part], label=part, height=0.72)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for place, (end, row) in enumerate(zip(left, own, strict=True)):
            told = f" {figure(row['tokens_per_second'])} tokens/s"
            panel.text(end, place, told, va="center", fontsize=8)
        panel.set_xlim(0, 1.22 * max(left))
        panel.invert_yaxis()
        panel.tick_params(axis="y", length=0, labelsize=8)
        panel.set_xlabel(f"milliseconds of a step, batch {batch}")
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False)
    row = rows[-1]
    drawing.suptitle(f"{row['device_name']}: {row['models']}", fontsize=10)
    write_figure(drawing, path)
    return True
