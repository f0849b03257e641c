"""The acceptance report: the parts that are there, as Markdown and as plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdk_cuda.calibration.methods import FULL, PRUNED, RECOMMENDED
from rdk_cuda.evaluation.plots import acceptance_figure
from rdk_cuda.evaluation.rows import Row, read_evaluation
from rdk_cuda.files import write_figure

from ...commands import write_text
from ...tables import table
from .parts import PARTS

__all__ = ["REPORT", "below_pruned", "write_report"]

REPORT = "report.md"
Contents = Mapping[str, Mapping[str, Any]]
"""The content of each part's file."""
Label = Callable[[Row], str]

INTRODUCTION = """\
# What pruning a drafter's head costs, and what comes back

All figures are from `python -m profiling.studies.acceptance`, which wrote this page, the plots
and the data next to it (a `.json` file for each part). Acceptance is the mean of `sum_x min(p(x),
q(x))` over all positions of held-out text, computed and not sampled; greedy, it is the share of
positions where draft and target choose the same token. *Recovered* is the share of the acceptance
lost to pruning that a method wins back: 0 % is the pruned drafter, 100 % the full one. In
brackets: 95 % intervals, bootstrap over documents (4,000 resamples, the same for all methods).

The models are those that the repository ships, and the text is source code: modules of Python's
standard library. No document is in both the calibration and the held-out text. The tokens kept are
those to which the target gives most mass at T = 1 on the calibration text."""


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """Write the plots and the text into the folder, from the parts that are there.

    Args:
        folder: of the parts' files.
        names: of all parts.
    """
    files = {name: folder / f"{name}.json" for name in names}
    contents = {name: read_evaluation(file) for name, file in files.items() if file.is_file()}
    parts = {name: content["rows"] for name, content in contents.items()}
    for name in PLOTTED:
        if name in parts:
            figure = acceptance_figure(parts[name], "demo models, held-out code")
            write_figure(figure, folder / f"{name}.png")
    missing = ", ".join(name for name in names if name not in contents)
    blocks = [INTRODUCTION, f"**Not measured yet:** {missing}." if missing else ""]
    blocks.append(below_table(parts))
    for name, (words, lines, columns) in SECTIONS.items():
        if name in parts:
            blocks += [words, pivot(parts[name], lines, columns)]
            blocks.append(f"![{name}]({name}.png)" if name in PLOTTED else "")
    text = "\n\n".join(filter(None, [*blocks, texts(contents), provenance(contents)])) + "\n"
    write_text(text, folder / REPORT)
    return folder / REPORT


def below_pruned(parts: Mapping[str, Sequence[Row]]) -> tuple[int, list[tuple[Row, Row]]]:
    """The number of rows of the recommended method, and those below the pruned drafter.

    Each of the latter with the row of the pruned drafter that belongs to it.
    """
    compared, below = 0, []
    same = ("calibrated_on", "temperature", "keep")
    for rows in parts.values():
        alone = {tuple(map(row.get, same)): row for row in rows if row["method"] == PRUNED}
        for row in rows:
            pruned = alone.get(tuple(map(row.get, same)))
            if row["method"] == RECOMMENDED and pruned is not None:
                compared += 1
                if row["acceptance"] < pruned["acceptance"]:
                    below.append((row, pruned))
    return compared, below


def below_table(parts: Mapping[str, Sequence[Row]]) -> str:
    """Where the recommended method is worse than no redistribution at all."""
    compared, below = below_pruned(parts)
    words = f"{RECOMMENDED} is below the pruned drafter in {len(below)} of {compared} places."
    if not below:
        return words if compared else ""
    titles = ("calibrated on", "kept", "T", "pruned drafter", RECOMMENDED, "recovered")
    lines = [
        (
            *(row["calibrated_on"], kept(row), temperature(row)),
            *(f"{pruned['acceptance']:.4f}", f"{row['acceptance']:.4f}", recovered(row)),
        )
        for row, pruned in below
    ]
    return f"{words}\n\n{table(titles, lines)}"


def texts(contents: Contents) -> str:
    """What was read."""
    facts: dict[str, Any] = {}
    for content in contents.values():
        facts |= content["texts"]
    names = ("positions", "documents", "all_tokens", "all_documents")
    lines = [
        (name, *(f"{fact[each]:,}" if each in fact else "" for each in names))
        for name, fact in facts.items()
    ]
    titles = ("text", "positions read", "of documents", "tokens there are", "in documents")
    return f"## Texts\n\n{table(titles, lines)}" if lines else ""


def provenance(contents: Contents) -> str:
    """Where and when each part was measured."""
    titles = ("part", "measured", "commit", "on", "torch", "threads", "minutes")
    lines = []
    for name, content in contents.items():
        commit = (content["commit"] or "unknown")[:12] + (", changed" if content["dirty"] else "")
        lines.append(
            (
                *(f"[{name}]({name}.json)", content["run"], commit, content["device_name"]),
                *(content["torch"], str(content["threads"]), f"{content['seconds'] / 60:.1f}"),
            )
        )
    return f"## Where and when\n\n{table(titles, lines)}" if lines else ""


def pivot(rows: Iterable[Row], lines: Mapping[str, Label], columns: Label) -> str:
    """Acceptance and what is recovered: a line for each label, a column for each pruning.

    Args:
        lines: the labels of a line, by the title of their column.
        columns: the label of a column.
    """
    rows = list(rows)
    keeps = list(dict.fromkeys(row["keep"] for row in rows if row["method"] != FULL))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        # The full drafter stands next to every pruning that it is compared with.
        for keep in keeps if row["method"] == FULL else [row["keep"]]:
            line = cells.setdefault(tuple(each(row) for each in lines.values()), {})
            text = " · ".join(filter(None, (f"{row['acceptance']:.3f}", recovered(row))))
            line[columns({**row, "keep": keep})] = text
    titles = dict.fromkeys(title for line in cells.values() for title in line)
    body = [(*line, *(found.get(title, "") for title in titles)) for line, found in cells.items()]
    return table((*lines, *titles), body)


def kept(row: Row) -> str:
    """The share of the vocabulary that is kept."""
    return f"{100 * row['keep']:.4g} %"


def temperature(row: Row) -> str:
    """The temperature as a number, or "greedy"."""
    return "greedy" if row["temperature"] == 0 else f"{row['temperature']:g}"


def kept_and_temperature(row: Row) -> str:
    """The title of a column."""
    return f"{kept(row)}, T = {temperature(row)}"


def recovered(row: Row) -> str:
    """The recovered share with its interval; empty if there is none."""
    if row["recovered"] is None:
        return ""
    ends = [row["recovered_low"], row["recovered_high"]]
    known = "" if None in ends else " [{:.0f}, {:.0f}]".format(*(100 * end for end in ends))
    return f"{100 * row['recovered']:.0f} %{known}"


METHOD: dict[str, Label] = {"method": lambda row: str(row["method"])}
TEMPERATURE: dict[str, Label] = {"T": temperature}
CALIBRATED: dict[str, Label] = {"calibrated on": lambda row: str(row["calibrated_on"])}

PLOTTED = ("methods", "temperatures")
SECTIONS: dict[str, tuple[str, Mapping[str, Label], Label]] = {
    "methods": (
        "## Every method\n\n"
        "Cells: acceptance, and the share of the loss recovered. Every method is "
        "calibrated for its temperature on the same recording; what it was tuned to is in the "
        "data.",
        {**TEMPERATURE, **METHOD},
        kept,
    ),
    "similarities": (
        "## RDK with similarities\n\n"
        "T = 1. It takes minutes to build, so it is calibrated on 1,536 "
        "positions. Kept tokens are chosen from these too: compare it with the pruned drafter of "
        "this table.",
        METHOD,
        kept,
    ),
    "temperatures": (
        "## Lower temperatures and greedy\n\n"
        "Greedy methods are calibrated at the lowest recorded temperature, 0.6, "
        "and switched off where that does not help on calibration text.",
        {**TEMPERATURE, **METHOD},
        kept,
    ),
    "virtual": (
        "## How many virtual rows",
        {**METHOD, "virtual rows": lambda row: str(row["virtual_rows"])},
        kept_and_temperature,
    ),
    "sizes": (
        "## How much calibration text\n\n"
        "Successors are counted in all training text, which takes no model, or "
        "only where the models read it. Kept tokens are chosen from the same recording, so the "
        "pruned drafter changes too.",
        {**CALIBRATED, **METHOD},
        kept_and_temperature,
    ),
}
assert set(SECTIONS) == set(PARTS)
