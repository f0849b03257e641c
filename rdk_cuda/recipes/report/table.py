"""The rows of an evaluation on the terminal: tables, and what they stand on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..stages.pruning import FULL, LIFTED, PRUNED, RECOMMENDED
from ..stages.stage import Stage, State
from .rows import Row

COLUMNS = (
    "\nmethod",
    "head\nrows",
    "\nacceptance",
    "% of loss\nrecovered",
    "accepted\nlength",
    "head\nMB",
    "predicted\nspeed-up",
)

ABOVE_FULL = (
    "More than 100 % of the loss recovered is no error: redistribution also carries the target's "
    "mean probabilities, which the full drafter does not have."
)


def show(
    state: State[Any],
    stages: Sequence[Stage[Any]],
    rows: Sequence[Sequence[Row]],
    calibrated_for: float | None = None,
    about_text: str = "",
) -> None:
    """Print the rows, what the stages say of them, and how they were measured."""
    console = Console()
    for place, figures in enumerate(rows):
        show_rows(console, figures, calibrated_for)
        for sentence in filter(None, (stage.describe(state, place) for stage in stages)):
            say(sentence)
    say("")
    for sentence in filter(None, (stage.summary(state) for stage in stages)):
        say(sentence)
    show_notes(console, [row for figures in rows for row in figures], about_text)


def show_rows(console: Console, rows: Sequence[Row], calibrated_for: float | None = None) -> None:
    """A table for each temperature; `calibrated_for` is named where it is another one."""
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        for place, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if place else "left", no_wrap=True)
        for row in rows:
            if row["temperature"] == temperature:
                style = "bold" if row["method"] == RECOMMENDED else ""
                table.add_row(*cells(row), style=style)
        title = "Greedy" if temperature == 0 else f"Temperature {temperature:g}"
        if calibrated_for not in (None, temperature):
            title += f" (calibrated for {calibrated_for:g})"
        console.print(f"\n{title}, held-out text:", highlight=False)
        console.print(table)


def show_notes(console: Console, rows: Sequence[Row], about_text: str = "") -> None:
    """Say how the figures were measured; `about_text` follows on how much."""
    for note in notes(rows, about_text):
        console.print(note, highlight=False, markup=False)


def cells(row: Row) -> list[str]:
    columns = f"+{row['dynamic_columns']:.0f}" if row["dynamic_columns"] else ""
    return [
        row["method"],
        f"{row['head_rows']}{columns}",
        over_interval(row, "acceptance", "{:.3f}"),
        over_interval(row, "recovered", "{:.0f}", 100),
        f"{row['accepted_length']:.2f}",
        megabytes(row["head_bytes"]),
        over_interval(row, "speed_up", "{:.2f}"),
    ]


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}" if count >= 100e6 else f"{count / 1e6:.2f}"


def over_interval(row: Row, name: str, form: str, factor: int = 1) -> str:
    """For example `93` and in a line below `[88, 97]`."""
    if row[name] is None:
        return "–"
    value, low, high = (
        math.nan if row[f"{name}{end}"] is None else factor * row[f"{name}{end}"]
        for end in ("", "_low", "_high")
    )
    shown = form.format(value)
    return shown if math.isnan(low) else f"{shown}\n[{form.format(low)}, {form.format(high)}]"


def notes(rows: Sequence[Row], about_text: str) -> list[str]:
    row = rows[0]
    sentences = [
        f"Measured at {row['positions']} positions, in {counted(row['windows'], 'window')} of "
        f"{counted(row['documents'], 'document')}. {about_text}".strip(),
        interval_sentence(rows),
    ]
    methods = {row["method"] for row in rows}
    if LIFTED in methods:
        sentences.append(
            "No share of the loss is known: the drafter has no rows for the pruned tokens, which "
            "are lifted from the target's."
        )
    elif FULL in methods and any(
        row["method"] not in (FULL, PRUNED) and row["recovered"] is None for row in rows
    ):
        sentences.append("Where no share is recovered, pruning alone loses nothing.")
    if any((row["recovered"] or 0) > 1 for row in rows):
        sentences.append(ABOVE_FULL)
    if any(row["speed_up"] is not None for row in rows):
        sentences.append(
            "Speed-up: over the target alone with one sequence, predicted from the accepted length "
            "and the times of the models' parts on this machine, taken in turn; median, and the "
            "middle 80 % of rounds."
        )
    return [*sentences, *dict.fromkeys(row["doubt"] for row in rows if row["doubt"])]


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def interval_sentence(rows: Sequence[Row]) -> str:
    if rows[0]["documents"] < 2:
        return (
            "There are no intervals: they are taken from how documents differ, and this is one; "
            "give more files."
        )
    sentence = "In brackets: 95 % intervals, a bootstrap over documents."
    known = [row["recovered_low"] for row in rows if row["recovered"] is not None]
    if any(low is None or math.isnan(low) for low in known):
        sentence += (
            " A share without one cannot have it: some of the documents lose nothing to pruning."
        )
    return sentence


def say(words: str) -> None:
    Console().print(words, soft_wrap=True, highlight=False, markup=False)
