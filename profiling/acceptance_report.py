"""The acceptance report: the parts that are there, as Markdown for readers and as plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdk_cuda.calibration.methods import (
    DYNAMIC,
    FULL,
    LOW_RANK,
    METHODS,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
)
from rdk_cuda.commands.evaluation_files import Row, read_evaluation
from rdk_cuda.commands.files import write_whole

from .acceptance_plots import write_plots
from .acceptance_verdicts import Verdict, below_pruned, interval, percent, verdicts
from .markdown import table
from .serving_pair import ASSUMPTIONS, serving_speed_up

__all__ = ["write_report"]

Contents = Mapping[str, Mapping[str, Any]]
"""Of each part's file."""
Label = Callable[[Row], str]

COSTED = (FULL, PRUNED, LOW_RANK, DYNAMIC, VIRTUAL, RECOMMENDED)
COSTED_KEEPS = (0.25, 0.0625)


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """Write the plots into the folder and the text beside it, from the parts that are there.

    Args:
        folder: of the parts' files, whose name the text gets too.
        names: of all parts, in the order of the text.
    """
    files = {name: folder / f"{name}.json" for name in names}
    contents = {name: read_evaluation(file) for name, file in files.items() if file.is_file()}
    parts = with_sparse({name: content["rows"] for name, content in contents.items()})
    pictures = write_plots(folder, parts)
    text = report(contents, names, {name: f"{folder.name}/{name}" for name in pictures})
    path = folder.with_name(f"{folder.name}.md")
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    return path


def report(contents: Contents, names: Sequence[str], pictures: Mapping[str, str]) -> str:
    """The text.

    Args:
        pictures: where each is, seen from the text.
    """
    parts = with_sparse({name: content["rows"] for name, content in contents.items()})
    missing = [name for name in names if name not in contents]
    blocks = [introduction(missing), verdict_table(verdicts(parts)), below_table(parts)]
    for name, section in SECTIONS.items():
        if name in parts:
            blocks += [section(parts[name]), *shown(pictures, name)]
    if "methods" in parts:
        blocks.append(costs(parts, contents["methods"]["times"]))
    blocks += [texts(contents), provenance(contents)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def with_sparse(parts: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """The part `sparse` among the other methods, where those are there."""
    others = {name: rows for name, rows in parts.items() if name != "sparse"}
    if "sparse" in parts and "methods" in parts:
        more = [row for row in parts["sparse"] if row["method"] not in (FULL, PRUNED)]
        order = {name: place for place, name in enumerate((FULL, *METHODS))}
        both = [*parts["methods"], *more]
        others["methods"] = sorted(both, key=lambda row: order[row["method"]])
    return others


def introduction(missing: Sequence[str]) -> str:
    """What was measured, and how to do it again."""
    lines = [
        "# What pruning a drafter's head costs, and what comes back",
        "All figures are from `python -m profiling.acceptance`, which wrote this page, the plots "
        "and the data beside them (a `.json` and a `.csv` file for each part; fields: "
        "`rdk_cuda/commands/evaluation_files.py`). Acceptance is the mean of "
        "`sum_x min(p(x), q(x))` over all positions of held-out text, computed and not sampled; "
        "greedy, the share of positions where draft and target choose the same token. "
        "*Recovered* is the share of the acceptance lost to pruning that a method wins back: 0 % "
        "is the pruned drafter, 100 % the full one. In brackets: 95 % intervals, bootstrap over "
        "documents (4,000 resamples, the same for all methods).",
        "The *demo* pair are the models that the repository ships. The *sharp* pair are these "
        "two, mixed with n-grams and context caches until they are as sure of rare tokens as "
        "large models are (`profiling/sharp_pair.py`). Its drafter has no LM head of its own, so "
        "the methods that need one are left out there: RDK in all forms and low-rank heads. Kept "
        "are the tokens to which the target gives most mass at T = 1 on the calibration text.",
    ]
    if missing:
        lines.append(f"**Not measured yet:** {', '.join(missing)}.")
    return "\n\n".join(lines)


def verdict_table(found: Sequence[Verdict]) -> str:
    """Every target, met or missed."""
    titles = ("target", "needs", "measured", "95 % interval", "")
    lines = [
        (one.promise, one.target, one.measured, one.interval, f"**{one.verdict}**") for one in found
    ]
    words = (
        "## Targets\n\n"
        "Judged by the measured value; where the interval holds the target, other text might be "
        "judged otherwise."
    )
    return f"{words}\n\n{table(titles, lines)}"


def below_table(parts: Mapping[str, Sequence[Row]]) -> str:
    """Where the recommended method ends below the pruned drafter."""
    below = below_pruned(parts)
    if not below:
        return ""
    titles = (
        *("pair", "calibrated on", "evaluated on", "kept", "T"),
        *("pruned drafter", RECOMMENDED, "recovered"),
    )
    lines = [
        (
            *(row["pair"], row["calibrated_on"], row["corpus"], kept(row), temperature(row)),
            *(f"{pruned['acceptance']:.4f}", f"{row['acceptance']:.4f}", recovered(row)),
        )
        for row, pruned in below
    ]
    return f"{RECOMMENDED} ends below the pruned drafter here:\n\n{table(titles, lines)}"


def methods_section(rows: Sequence[Row]) -> str:
    """All methods."""
    words = (
        "## Every method\n\n"
        "Demo pair, code. Cells: acceptance, and the share of the loss recovered. Every method is "
        "calibrated for its temperature on the same recording; what it was tuned to is in the "
        "data. RDK with similarities takes minutes to build, so it is there at T = 1 alone, "
        "calibrated on 1,536 positions."
    )
    ordered = sorted(rows, key=lambda row: -row["temperature"])
    tables = [
        f"T = {at:g}:\n\n" + pivot([row for row in ordered if row["temperature"] == at], METHOD)
        for at in dict.fromkeys(row["temperature"] for row in ordered)
    ]
    return "\n\n".join([words, *tables])


def temperatures_section(rows: Sequence[Row]) -> str:
    """Other temperatures."""
    words = (
        "## Lower temperatures and greedy\n\n"
        "Demo pair, code. Greedy methods are calibrated at the lowest recorded temperature, 0.6, "
        "and switched off where that does not help on calibration text."
    )
    return f"{words}\n\n{pivot(rows, {**TEMPERATURE, **METHOD})}"


def sharp_section(rows: Sequence[Row]) -> str:
    """The sharp pair."""
    words = (
        "## The sharp pair\n\n"
        "Code. Its n-grams and the successors are counted in the same text, and its caches and "
        "recent tokens look at the same context: that favours dynamic tokens."
    )
    return f"{words}\n\n{pivot(rows, {**TEMPERATURE, **METHOD})}"


def shift_section(rows: Sequence[Row]) -> str:
    """Calibrated on one corpus, evaluated on another."""
    words = (
        "## Another text than it was calibrated on\n\n"
        "Demo pair. The kept tokens, the successors and everything else come from the text that "
        "it is calibrated on. The models were trained on code alone: prose is new to both."
    )
    lines: dict[str, Label] = {
        "calibrated on": lambda row: str(row["calibrated_on"]),
        "evaluated on": lambda row: str(row["corpus"]),
        **TEMPERATURE,
        **METHOD,
    }
    return f"{words}\n\n{pivot(rows, lines)}"


def sizes_section(rows: Sequence[Row]) -> str:
    """How much text calibration needs."""
    words = (
        "## How much calibration text\n\n"
        f"Demo pair, code, {RECOMMENDED}. Successors are counted in all training text, which "
        "takes no model, or only where the models read it. Kept tokens are chosen from the same "
        "recording, so the pruned drafter changes too."
    )
    lines: dict[str, Label] = {"calibrated on": lambda row: str(row["calibrated_on"]), **METHOD}
    chosen = [row for row in rows if row["method"] != FULL]
    return f"{words}\n\n{pivot(chosen, lines, kept_and_temperature)}"


def virtual_section(rows: Sequence[Row]) -> str:
    """How many virtual rows."""
    words = "## How many virtual rows\n\nDemo pair, code."
    lines: dict[str, Label] = {**METHOD, "virtual rows": lambda row: str(row["virtual_rows"])}
    chosen = sorted(rows, key=lambda row: COSTED.index(row["method"]))
    return f"{words}\n\n{pivot(chosen, lines, kept_and_temperature)}"


SECTIONS: dict[str, Callable[[Sequence[Row]], str]] = {
    "methods": methods_section,
    "sharp": sharp_section,
    "temperatures": temperatures_section,
    "virtual": virtual_section,
    "sizes": sizes_section,
    "shift": shift_section,
}


def costs(parts: Mapping[str, Sequence[Row]], times: Mapping[str, float]) -> str:
    """Head sizes, and the speed-ups that they and the accepted lengths make."""
    words = (
        "## What it costs and what it is worth\n\n"
        "Code, T = 1; other prunings and temperatures are in the data. Read and computed is for "
        "one position; n-grams and caches of the sharp pair are left out. A low-rank head has all "
        "rows, those of pruned tokens as two thin factors. Accepted: expected "
        f"number of accepted drafts of K = {times['draft_length']}. The speed-up *here* is "
        "predicted from the accepted length and from times of the demo's models on this machine: "
        f"target {milliseconds(times['target_alone'])} for one token and "
        f"{milliseconds(times['target_verify'])} for K + 1, drafter without its head "
        f"{milliseconds(times['drafter_body'])}, head {1e9 * times['head_weight']:.3f} ns for "
        f"each of its weights. {disturbed(times)}{ASSUMPTIONS}"
    )
    titles = (
        *("pair", "kept", "method", "head rows", "dynamic columns", "MB read", "MFLOP"),
        *("accepted", "speed-up here", "speed-up at serving size"),
    )
    chosen = [
        row
        for part in ("methods", "sharp")
        for keep in (1.0, *COSTED_KEEPS)
        for row in parts.get(part, ())
        if (row["keep"], row["temperature"]) == (keep, 1) and row["method"] in COSTED
    ]
    lines = [
        (
            *(row["pair"], kept(row), row["method"]),
            *(f"{row['head_rows']:,}", f"{row['dynamic_columns']:.0f}"),
            *(f"{row['head_bytes'] / 1e6:.2f}", f"{row['head_flops'] / 1e6:.2f}"),
            f"{row['accepted_length']:.2f}",
            "" if row["speed_up"] is None else f"{row['speed_up']:.2f}",
            f"{serving_speed_up(row):.2f}",
        )
        for row in chosen
    ]
    return f"{words}\n\n{table(titles, lines)}"


def disturbed(times: Mapping[str, Any]) -> str:
    """A warning where fewer tokens took longer, which only a busy machine explains."""
    if times["target_alone"] <= times["target_verify"]:
        return ""
    return (
        "One token took longer than K + 1, so the machine was busy with other work: that column is "
        "rough. "
    )


def texts(contents: Contents) -> str:
    """What was read."""
    facts: dict[str, Any] = {}
    for content in contents.values():
        facts |= content["texts"]
    lines = []
    for name, fact in facts.items():
        if name.startswith("sources of "):
            continue
        there = "all_tokens" in fact
        read = f"{fact['positions']:,}", f"{fact['documents']:,}"
        whole = (f"{fact['all_tokens']:,}", f"{fact['all_documents']:,}") if there else ("", "")
        lines.append((name, *read, *whole))
    titles = ("text", "positions read", "of documents", "tokens there are", "in documents")
    sources = [
        f"{name.removeprefix('sources of ')}: "
        + ", ".join(f"{count} from {source}" for source, count in sorted(fact.items()))
        for name, fact in facts.items()
        if name.startswith("sources of ")
    ]
    words = (
        "No document is in both a calibration and a held-out text. Documents by source: "
        f"{'; '.join(sources)} (`profiling/corpora.py`)."
    )
    return f"## Texts\n\n{table(titles, lines)}\n\n{words}" if lines else ""


def provenance(contents: Contents) -> str:
    """Where and when each part was measured."""
    titles = ("part", "measured", "commit", "on", "torch", "threads", "minutes")
    lines = []
    for name, content in contents.items():
        commit = (content["commit"] or "unknown")[:12] + (", changed" if content["dirty"] else "")
        lines.append(
            (
                *(name, content["run"], commit, content["device_name"], content["torch"]),
                *(str(content["threads"]), f"{content['seconds'] / 60:.1f}"),
            )
        )
    return f"## Where and when\n\n{table(titles, lines)}" if lines else ""


def pivot(rows: Iterable[Row], lines: Mapping[str, Label], columns: Label | None = None) -> str:
    """Acceptance and what is recovered: a line for each label, a column for each pruning.

    Args:
        lines: the labels of a line, by the title of their column.
        columns: the label of a column, if it is another than the pruning.
    """
    label = kept if columns is None else columns
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    spread = with_full_everywhere(rows)
    for row in spread:
        line = cells.setdefault(tuple(each(row) for each in lines.values()), {})
        line[label(row)] = " · ".join(filter(None, (f"{row['acceptance']:.3f}", recovered(row))))
    titles = dict.fromkeys(label(row) for row in spread)
    body = [(*line, *(found.get(title, "") for title in titles)) for line, found in cells.items()]
    return table((*lines, *titles), body)


def with_full_everywhere(rows: Iterable[Row]) -> list[Row]:
    """The rows, with the full drafter beside every pruning that it is compared with."""
    rows = list(rows)
    keeps = list(dict.fromkeys(row["keep"] for row in rows if row["method"] != FULL))
    spread = []
    for row in rows:
        spread += [{**row, "keep": keep} for keep in keeps] if row["method"] == FULL else [row]
    return spread


def shown(pictures: Mapping[str, str], part: str) -> list[str]:
    """The plots that belong to a part; those of two pairs to the sharp one."""
    beginnings = (part, "pairs") if part == "sharp" else (part,)
    chosen = [name for name in pictures if name.removesuffix(".png").startswith(beginnings)]
    return [f"![{name.removesuffix('.png')}]({pictures[name]})" for name in chosen]


def kept(row: Row) -> str:
    """The share of the vocabulary that is."""
    return percent(row["keep"])


def temperature(row: Row) -> str:
    """As a number, or greedy."""
    return "greedy" if row["temperature"] == 0 else f"{row['temperature']:g}"


def kept_and_temperature(row: Row) -> str:
    """The title of a column."""
    return f"{kept(row)}, T = {temperature(row)}"


def recovered(row: Row) -> str:
    """The share with its interval; empty where there is none."""
    if row["recovered"] is None:
        return ""
    return f"{100 * row['recovered']:.0f} % {interval(row)}".rstrip()


def milliseconds(seconds: float) -> str:
    """With two digits."""
    return f"{1000 * seconds:.2g} ms"


METHOD: dict[str, Label] = {"method": lambda row: str(row["method"])}
TEMPERATURE: dict[str, Label] = {"T": temperature}
