"""What the demo prints: the table, sentences about it, a continuation in colour, the checks."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdk_cuda.calibration.methods import (
    FIRST_ORDER,
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
)
from rdk_cuda.decoding.generation import Kind
from rdk_cuda.evaluation.table import ABOVE_FULL
from rdk_cuda.evaluation.timing import contradiction

from .results import TARGET_ALONE

# How a token is shown by the way it came about: a style and, where there is no colour, brackets.
STYLES: dict[Kind, tuple[str, str, str]] = {
    "accepted": ("green", "", "draft that the target accepted"),
    "out_of_vocabulary": (
        "black on bright_yellow",
        "⟦⟧",
        "accepted draft that the pruned vocabulary alone cannot propose",
    ),
    "resampled": ("bold red", "«»", "token drawn in place of a rejected draft"),
    "bonus": ("cyan", "‹›", "token drawn after the last draft"),
}

# Paths and figures as they are: no markup, no highlighting, no wrapping.
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def show(console: Console, results: dict[str, Any]) -> None:
    """Everything, in order."""
    positions, rows = results["positions"], results["table"]
    show_table(console, rows, results["settings"]["temperature"])
    for note in notes(rows, positions, results["times_doubt"]):
        console.print(f"\n{note}", highlight=False)
    show_continuation(console, **results["continuation"])
    show_checks(console, results["checks"])


def show_table(console: Console, rows: Sequence[dict[str, Any]], temperature: float) -> None:
    """The table, a row for each method."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True, vertical="bottom")
    for name in (
        "head\nrows",
        "accept-\nance",
        "% of the loss\nrecovered",
        "accepted\nlength",
        "passes\n/token",
        "tokens\n/s",
    ):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for row in rows:
        if row["method"] == PRUNED:
            table.add_row(Text(f"keeping {percent(row['keep'])}", "italic"))
        table.add_row(*cells(row), style="bold" if row["method"] == RECOMMENDED else "")
    console.print(f"\nTemperature {temperature:g}.", highlight=False)
    console.print(table)


def cells(row: dict[str, Any]) -> list[str]:
    """A row's figures, as short as they are readable."""
    alone = row["method"] == TARGET_ALONE
    indent = "" if row["keep"] in (None, 1.0) else "  "
    return [
        indent + row["method"],
        head_rows(row),
        "–" if alone else f"{row['acceptance']['value']:.3f}",
        share_with_interval(row["recovered"]),
        "–" if alone else f"{row['accepted_length']:.2f}",
        f"{row['target_passes_per_token']:.3f}",
        f"{row['tokens_per_second']:.{0 if row['tokens_per_second'] >= 20 else 1}f}",
    ]


def head_rows(row: dict[str, Any]) -> str:
    """For example `4160` or, with the dynamic tokens that a position has on average, `4160+12`."""
    columns = row["dynamic_columns"]
    return f"{row['head_rows']}" + (f"+{columns:.0f}" if columns else "")


def share_with_interval(share: dict[str, float] | None) -> str:
    """For example `131 [120, 142]`, in percent."""
    if share is None:
        return "–"
    value, low, high = (100 * share[end] for end in ("value", "low", "high"))
    return f"{value:.0f}" + ("" if math.isnan(low) else f" [{low:.0f}, {high:.0f}]")


def percent(share: float) -> str:
    """For example `6.25 %`."""
    return f"{100 * share:.4g} %"


def notes(
    rows: Sequence[dict[str, Any]], positions: dict[str, int], doubt: str | None
) -> list[str]:
    """What the table does not say by itself."""
    sentences = [
        f"Acceptance is the mean of sum min(p, q), exact, over {positions['held_out']} positions "
        f"of {positions['documents']} held-out modules. The share of its loss to pruning that "
        "is recovered has a 95 % interval, a bootstrap over modules. Accepted length is the "
        "number of drafts accepted in a target pass."
    ]
    if any(row["recovered"] and row["recovered"]["value"] > 1 for row in rows):
        sentences.append(ABOVE_FULL)
    sentences.append(
        "Dynamic tokens are pruned ones of the recent context and likely successors of the last "
        "token; the number after the + is their mean at a position. First-order RDK spreads "
        f"kept tokens too. Chosen on calibration text: its {tuned(rows, FIRST_ORDER)}; alone "
        f"{tuned(rows, VIRTUAL)}; with dynamic ones {tuned(rows, RECOMMENDED)}."
    )
    return [*sentences, time_sentence(rows, doubt)]


def tuned(rows: Sequence[dict[str, Any]], method: str) -> str:
    """What was picked for a method at every pruning."""
    chosen = [row for row in rows if row["method"] == method]
    return ", ".join(f"{row['tuned']} (at {percent(row['keep'])})" for row in chosen)


def time_sentence(rows: Sequence[dict[str, Any]], doubt: str | None) -> str:
    """Whether drafting saved time, from what was measured; no ratio that cannot be."""
    _, *others = rows
    best = max(others, key=lambda row: float(row["relative_speed"]["value"]))
    factor, low, high, rounds = best["relative_speed"].values()
    passes = best["target_passes_per_token"]
    if reason := next(filter(None, map(contradiction, map(pass_time, others))), None):
        return f"Time: not reported, because {reason}. Run it again on a quiet machine."
    name = best["method"] if best["keep"] == 1 else f"{best['method']} at {percent(best['keep'])}"
    verdict = "."
    if high < 1:
        verdict = ": no gain with these models on this machine."
    elif low < 1:
        verdict = ": neither gain nor loss is certain."
    sentence = (
        f"Time: the fastest drafter here, {name}, saves {1 - passes:.0%} of the target's passes, "
        f"but each, with its drafts, takes {pass_time(best):.1f} times as long. Together "
        f"that is {factor:.2f} times the target's own speed ({low:.2f} to {high:.2f} in {rounds} "
        f"rounds, the methods in turn){verdict}"
    )
    return sentence if doubt is None else f"{sentence} {doubt}"


def pass_time(row: dict[str, Any]) -> float:
    """Of a pass of the target with its drafts, relative to one of the target alone."""
    passes, speed = row["target_passes_per_token"], row["relative_speed"]["value"]
    return float(1 / (passes * speed))


def show_continuation(
    console: Console,
    *,
    method: str,
    source: str,
    prompt: str,
    pieces: Sequence[str],
    kinds: Sequence[Kind],
    tokens: Sequence[int],
) -> None:
    """The end of a prompt and what was decoded after it, token by token."""
    colour = console.color_system is not None
    legend, text = Text(), Text.assemble((prompt, "dim"))
    for kind, (style, brackets, meaning) in STYLES.items():
        legend.append(*shown(kind, style, brackets, colour)).append(f": {meaning}\n")
    for piece, kind in zip(pieces, kinds, strict=True):
        style, brackets, _ = STYLES[kind]
        text.append(*shown(piece, style, brackets, colour))
    console.print(f"\n{source}, continued by {method}:", **PLAIN)
    console.print(legend)
    console.print(text, soft_wrap=True)
    console.print()


def shown(text: str, style: str, brackets: str, colour: bool) -> tuple[str, str]:
    """A text with its style or, without colours, between its brackets; spaces stay outside."""
    if colour or not brackets or not text.strip():
        return text, style
    core = text.strip()
    return text.replace(core, f"{brackets[0]}{core}{brackets[1]}", 1), ""


def show_checks(console: Console, checks: Sequence[dict[str, Any]]) -> None:
    """A verdict on each check, with its figures."""
    for check in checks:
        verdict = ("passed", "bold green") if check["passed"] else ("FAILED", "bold red")
        console.print(Text.assemble(verdict, f"  {check['name']}: {check['detail']}."))
