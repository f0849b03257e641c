"""What the demo prints: two tables with what they mean, a continuation in colour, the checks."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdk_cuda.decoding.generation import Kind
from rdk_cuda.recipes.report.table import ABOVE_FULL
from rdk_cuda.recipes.stages.pruning import PRUNED, RECOMMENDED
from rdk_cuda.recipes.timing import contradiction

from .live import STYLES

INTRODUCTION = """\
A small model drafts a few tokens, and the target reads them in one pass and keeps those that
it agrees with. Its text stays what it would have been: only the time changes."""

MEANINGS = {
    "head rows": "Tokens that the drafter's head scores. Fewer are cheaper, but a token without a "
    "row can never be drafted, and the target has to say it by itself.",
    "virtual tokens": "One more row for each of some groups of pruned tokens. If it is drawn, one "
    "token of its group is drafted, by how often the target says it.",
    "dynamic tokens": "Pruned tokens that the text has just had, or that often follow the last "
    "one. Their rows are looked up one by one, each time.",
    "passes / token": "Passes of the target for each new token: 1 without drafts; fewer is better.",
    "K": "Drafts for each pass of the target. It and the way (→) were chosen on other text.",
    "acceptance": "The chance that a draft is kept, exact at every position of held-out text.",
}

# Paths and figures as they are: no markup, no highlighting, no wrapping.
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
BAR = 12  # characters


def show(console: Console, results: dict[str, Any]) -> None:
    """Everything, in order."""
    acceptance, positions = results["acceptance"], results["positions"]
    show_continuation(console, **results["continuation"])
    show_acceptance(console, acceptance, results["settings"]["temperature"])
    console.print(f"\n{acceptance_note(acceptance, positions)}\n", highlight=False)
    show_speed(console, results["speed"])
    for sentence in time_sentences(results["speed"], results["times_doubt"]):
        console.print(sentence, highlight=False)
    console.print()
    for name, meaning in MEANINGS.items():
        console.print(Text.assemble((name, "bold"), f": {meaning}"))
    console.print()
    show_checks(console, results["checks"])


def show_acceptance(console: Console, rows: Sequence[dict[str, Any]], temperature: float) -> None:
    """A row for each method."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(f"temperature {temperature:g}", no_wrap=True)
    for name in ("head rows", "acceptance", "% of the loss recovered"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row["method"] == PRUNED:
            table.add_row(Text(f"keeping {percent(row['keep'])}", "italic"))
        table.add_row(
            ("" if row["keep"] == 1.0 else "  ") + row["method"],
            head_rows(row),
            f"{row['acceptance']['value']:.3f}",
            share_with_interval(row["recovered"]),
            style="bold" if row["method"] == RECOMMENDED else "",
        )
    console.print(table)


def show_speed(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A row for each way to decode, the cases one after the other."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("K", "passes\n/token", "tokens\n/s", "times the\ntarget alone"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    fastest = max(row["relative_speed"]["value"] for row in rows)
    for row in rows:
        if row["way"] == rows[0]["way"]:
            table.add_row(Text(case_of(row).replace(" at a time", ""), "italic"))
        speed, passes = row["relative_speed"], row["target_passes_per_token"]
        table.add_row(
            f"{'→ ' if row['chosen'] else '  '}{row['way']}",
            f"{row['draft_length'] or ''}",
            "–" if passes is None else f"{passes:.2f}",
            f"{row['tokens_per_second']:.{0 if row['tokens_per_second'] >= 20 else 1}f}",
            f"{speed['value']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}]",
            "█" * round(BAR * speed["value"] / fastest),
            style="bold" if row["way"] == rows[-1]["way"] else "",
        )
    console.print(table)


def case_of(row: dict[str, Any]) -> str:
    """For example `greedy, 1 sequence at a time`."""
    hot, batch = row["temperature"], row["batch"]
    how = f"temperature {hot:g}" if hot else "greedy"
    return f"{how}, {batch} sequence{'s' * (batch > 1)} at a time"


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


def acceptance_note(rows: Sequence[dict[str, Any]], positions: dict[str, int]) -> str:
    """Where the figures are from."""
    note = (
        f"On {positions['held_out']} positions of {positions['documents']} held-out modules, with "
        "95 % intervals (a bootstrap over modules)."
    )
    above = any(row["recovered"] and row["recovered"]["value"] > 1 for row in rows)
    return f"{note} {ABOVE_FULL}" if above else note


def time_sentences(rows: Sequence[dict[str, Any]], doubt: str | None) -> list[str]:
    """Whether drafting saved time in each case, from what was measured; no ratio that cannot be."""
    sentences = []
    for case in dict.fromkeys(map(case_of, rows)):
        alone, *others = [row for row in rows if case_of(row) == case]
        drafted = [row for row in others if row["target_passes_per_token"] is not None]
        if reason := next(filter(None, map(contradiction, map(pass_time, drafted))), None):
            return [f"Time: not reported, because {reason}. Run it again on a quiet machine."]
        chosen = next((row for row in drafted if row["chosen"]), None)
        named = chosen or max(drafted, key=lambda row: float(row["relative_speed"]["value"]))
        factor, low, high = named["relative_speed"].values()
        verdict = (
            "a gain" if low > 1 else "no gain" if high < 1 else "neither gain nor loss is sure"
        )
        library = max(
            (row["tokens_per_second"] for row in others if row not in drafted),
            default=alone["tokens_per_second"],
        )
        choice = "chosen is" if chosen else "chosen is the target alone; the best drafter is"
        sentences.append(
            f"{case.capitalize()}: {choice} {named['way']}, {factor:.2f} times the target "
            f"alone ({low:.2f} to {high:.2f}): {verdict}; "
            f"{named['tokens_per_second'] / library:.2f} times Transformers' faster way."
        )
        sentences += recommended_sentences(drafted)
    return sentences if doubt is None else [*sentences, doubt]


def recommended_sentences(drafted: Sequence[dict[str, Any]]) -> list[str]:
    """Say what a step of the recommended way, the last, takes, and what keeps it from winning."""
    *_, own = drafted
    best = max(drafted, key=lambda row: float(row["tokens_per_second"]))
    known = all(row["model_seconds"] is not None for row in (own, best))
    sentences = []
    if known:
        beyond = own["seconds"] / own["model_seconds"] - 1
        sentences.append(
            f"There a step of {own['way']} takes {100 * beyond:.0f} % beyond the models' passes."
        )
    if best is not own:
        (step, models), (least, their_models) = map(step_seconds, (own, best))
        passes = own["target_passes_per_token"] / best["target_passes_per_token"]
        longer = f"a step takes {changed(step / least, 'more', 'less')} time"
        if known:
            longer += (
                f", {100 * (models - their_models) / least:.0f} points of it in the models' passes"
            )
        sentences.append(
            f"{best['way'].capitalize()} is faster than {own['way']} there: these take "
            f"{changed(passes, 'more', 'fewer')} passes of the target, since only "
            f"{own['out_of_vocabulary_tokens']} of {own['tokens']} tokens are drafts that the "
            f"pruned head cannot propose, and {longer}."
        )
    return sentences


def changed(ratio: float, more: str, less: str) -> str:
    """For example `2 % fewer`.

    Example:
        >>> changed(0.98, "more", "fewer"), changed(1.5, "more", "less")
        ('2 % fewer', '50 % more')
    """
    return f"{100 * abs(ratio - 1):.0f} % {more if ratio >= 1 else less}"


def step_seconds(row: dict[str, Any]) -> tuple[float, float]:
    """How long a step takes, and the models' passes in it; NaN where that is not known."""
    passes = row["target_passes_per_token"] * row["tokens"]
    known = row["model_seconds"]
    return row["seconds"] / passes, math.nan if known is None else known / passes


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
    speeds: tuple[float, float],
) -> None:
    """The end of a prompt and what was decoded after it, token by token."""
    colour = console.color_system is not None
    legend, text = Text(), Text.assemble((prompt, "dim"))
    for name, (style, brackets, meaning) in STYLES.items():
        legend.append(*shown(name, style, brackets, colour)).append(f": {meaning}\n")
    for piece, kind in zip(pieces, kinds, strict=True):
        style, brackets, _ = STYLES[kind]
        text.append(*shown(piece, style, brackets, colour))
    alone, ours = speeds
    console.print(
        f"\n{source}, continued with {method}: {ours:.0f} tokens/s here, the target alone "
        f"{alone:.0f}.",
        **PLAIN,
    )
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
