"""The page's sections on text: what pruning loses and what comes back, calibration, the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from rdk_cuda.calibration.methods import FULL, RECOMMENDED
from rdk_cuda.commands.evaluation_files import Row, read_evaluation
from rdk_cuda.demo.arguments import Settings

from .acceptance_report import kept, recovered, with_sparse
from .acceptance_runs import PARTS
from .acceptance_verdicts import verdicts
from .evidence import Content, Evidence, read_json
from .markup import Cell, Html, below, element, joined, paragraph, table
from .page_parts import Headline, Section, missing, picture

Label = Callable[[Row], str]
METHOD: dict[str, Label] = {"method": lambda row: str(row["method"])}
CALIBRATED: dict[str, Label] = {"calibrated on": lambda row: str(row["calibrated_on"])}
# Of each part: what its tables show, and the labels of a line.
PIVOTS: dict[str, tuple[str, dict[str, Label]]] = {
    "methods": ("Every method, demo models, code", METHOD),
    "sharp": ("Models as sure of rare tokens as large ones, code", METHOD),
    "temperatures": ("Lower temperatures and greedy", METHOD),
    "virtual": (
        "By number of virtual rows",
        {**METHOD, "virtual rows": lambda row: str(row["virtual_rows"])},
    ),
    "sizes": ("By amount of calibration text", {**METHOD, **CALIBRATED}),
    "shift": (
        "On another text than it was calibrated on",
        {**METHOD, **CALIBRATED, "evaluated on": lambda row: str(row["corpus"])},
    ),
}
PLOTS = {
    "methods": "Acceptance of every method against the share of the vocabulary that is kept.",
    "pairs-1": "Recovered share by method and pair of models, temperature 1.",
    "pairs-0.7": "Recovered share by method and pair of models, temperature 0.7.",
    "temperatures": "Acceptance at lower temperatures and greedy.",
    "virtual-1": "Recovered share against the number of virtual rows.",
}


def acceptance(evidence: Evidence, results: Path) -> Section:
    """What every method recovers, and the targets."""
    title, name = "Acceptance", "acceptance"
    folder = results / "acceptance"
    files = {part: folder / f"{part}.json" for part in PARTS}
    contents = {
        part: evidence.open(file, read_evaluation, partial(part_command, part))
        for part, file in files.items()
        if file.is_file()
    }
    if not contents:
        return missing(name, title, "python -m profiling.acceptance")
    own: dict[str, Sequence[Row]] = {part: each["rows"] for part, each in contents.items()}
    parts = with_sparse(own)
    judged = verdicts(own)
    lines = [
        (
            one.promise,
            one.target,
            evidence.cite(one.row, one.measured) if one.row else one.measured,
            one.interval,
            element("strong", one.verdict),
        )
        for one in judged
    ]
    report = results / "acceptance.md"
    more = ["The ", evidence.link(report, "full report"), " has the texts and the costs."]
    blocks = [
        paragraph(
            "The mean of sum over x of min(p(x), q(x)) over held-out text, computed and not "
            "sampled. Recovered is the share of what pruning loses that comes back; in brackets "
            "95 % intervals, a bootstrap over documents. ",
            *(more if report.is_file() else []),
        ),
        table(
            ("target", "needs", "measured", "95 % interval", ""),
            lines,
            "Targets. Figures over several rows are computed from the tables below.",
            left=5,
        ),
    ]
    for part, (words, labels) in PIVOTS.items():
        if part in parts:
            blocks += pivots(evidence, parts[part], labels, words)
    blocks += drawings(parts)
    best = [one for one in judged if one.row is not None]
    headlines = [
        Headline(
            f"lost acceptance {one.promise} ({RECOMMENDED})",
            joined([evidence.cite(one.row, one.measured), f" {one.interval}"]),
        )
        for one in best
        if one.row is not None and one.row["temperature"] == 1
    ]
    return Section(name, title, joined(blocks), headlines)


def drawings(parts: Mapping[str, Sequence[Row]]) -> list[Html]:
    """The report's plots, in the page's colours."""

    def draw(name: str) -> Any:
        from .acceptance_plots import figures

        return figures(parts).get(name)

    return [
        found
        for name, words in PLOTS.items()
        if (found := picture(partial(draw, name), f"acceptance-{name}", words))
    ]


def part_command(part: str, content: Content) -> str:
    """How a part of the acceptance report is made."""
    return f"python -m profiling.acceptance --part {part} --threads {content['threads']}"


def pivots(
    evidence: Evidence, rows: Sequence[Row], labels: Mapping[str, Label], words: str
) -> list[Html]:
    """A table for each temperature."""
    temperatures = sorted({row["temperature"] for row in rows}, reverse=True)
    return [
        pivot(
            evidence,
            [row for row in rows if row["temperature"] == at],
            labels,
            f"{words}, {f'T = {at:g}' if at else 'greedy'}",
        )
        for at in temperatures
    ]


def pivot(evidence: Evidence, rows: Sequence[Row], labels: Mapping[str, Label], words: str) -> Html:
    """Acceptance and what is recovered: a line for each label, a column for each pruning."""
    columns = dict.fromkeys(kept(row) for row in rows if row["method"] != FULL)
    lines: dict[tuple[str, ...], dict[str, Cell]] = {}
    for row in rows:
        line = lines.setdefault(tuple(label(row) for label in labels.values()), {})
        cell = evidence.cite(row, below(f"{row['acceptance']:.3f}", recovered(row)))
        # What the full drafter accepts is the ceiling of every pruning.
        line |= dict.fromkeys(columns, cell) if row["method"] == FULL else {kept(row): cell}
    cells = [(*line, *(found.get(title, "") for title in columns)) for line, found in lines.items()]
    return table((*labels, *columns), cells, words, left=len(labels))


def demo(evidence: Evidence, results: Path) -> Section:
    """The demo's tables and checks, at every temperature that there is."""
    title, name = "Demo", "demo"
    files = sorted(results.glob("demo*/results.json"))
    if not files:
        return missing(name, title, "make demo")
    blocks = [
        paragraph(
            element("code", "python -m rdk_cuda demo"),
            " continues held-out modules of Python's standard library with two small models. A "
            "target this small is faster alone: what counts is the acceptance.",
        )
    ]
    headlines = []
    for file in files:
        content = evidence.open(file, read_json, demo_command)
        at = f"temperature {content['settings']['temperature']:g}"
        blocks.append(demo_table(evidence, content, at))
        blocks.append(checks(evidence, content, at))
        draw = partial(demo_figure, content, at)
        words = f"Acceptance and recovered share by drafter, {at}."
        blocks.append(picture(draw, file.parent.name, words))
        names = ", ".join(check["name"] for check in content["checks"])
        cited = [evidence.cite(check, outcome(check)) for check in content["checks"]]
        headlines.append(Headline(f"{names} of the demo, {at}", joined(cited, ", ")))
    return Section(name, title, joined(blocks), headlines)


def demo_table(evidence: Evidence, content: Content, at: str) -> Html:
    """A line for each drafter."""

    def interval(found: Mapping[str, float] | None, form: str, scale: float = 1) -> Cell:
        if found is None:
            return ""
        value, low, high = (format(scale * found[end], form) for end in ("value", "low", "high"))
        return below(value, f"[{low}, {high}]")

    lines = [
        (
            row["method"],
            "" if row["keep"] is None else f"{100 * row['keep']:.4g} %",
            *(
                evidence.cite(row, figure) if figure else ""
                for figure in (
                    f"{row['head_rows']:,}",
                    interval(row["acceptance"], ".3f"),
                    interval(row["recovered"], ".0f", 100),
                    f"{row['accepted_length']:.2f}" if row["acceptance"] else "",
                    f"{row['target_passes_per_token']:.3f}",
                    f"{row['tokens_per_second']:,.0f}",
                )
            ),
        )
        for row in content["table"]
    ]
    titles = ("drafter", "kept", "head rows", "acceptance", "% of the loss recovered")
    return table(
        (*titles, "accepted length", "passes / token", "tokens / s"), lines, f"Demo, {at}", left=2
    )


def checks(evidence: Evidence, content: Content, at: str) -> Html:
    """What the demo verified of its own output."""
    lines = [
        (
            check["name"],
            element("strong", evidence.cite(check, outcome(check))),
            check["detail"],
        )
        for check in content["checks"]
    ]
    return table(("check", "", "what was compared"), lines, f"Checks of the demo, {at}", left=3)


def outcome(check: Mapping[str, Any]) -> str:
    """In a word."""
    return "passed" if check["passed"] else "FAILED"


def demo_figure(content: Content, at: str) -> Any:
    """The demo's own picture."""
    from rdk_cuda.demo.plot import figure_of

    return figure_of(content["plot"], f"Demo, {at}")


def demo_command(content: Content) -> str:
    """The command with the settings that are not the default ones."""
    words = ["python -m rdk_cuda demo"]
    for field in fields(Settings):
        value = content["settings"].get(field.name)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            words.append(f"--{field.name.replace('_', '-')} {' '.join(map(str, values))}")
    return " ".join(words)


def calibration(evidence: Evidence, results: Path) -> Section:
    """What calibration costs at full size."""
    title, name = "Calibration at full size", "calibration"
    files = sorted((results / "calibration-scale").glob("*.json"))
    if not files:
        return missing(name, title, "python -m profiling.calibration_scale --output FILE")
    blocks, headlines = [], []
    for file in files:
        content = evidence.open(file, read_json, calibration_command)
        rows = content["rows"]
        lines = [
            (
                row["stage"],
                evidence.cite(row, f"{row['seconds']:,.1f}"),
                evidence.cite(row, f"{row['peak_bytes'] / 1e9:.2f}"),
            )
            for row in rows
        ]
        whole = sum(row["seconds"] for row in rows), max(row["peak_bytes"] for row in rows)
        in_all = f"{whole[0]:,.0f} s, {whole[1] / 1e9:.1f} GB"
        shape = f"V {content['tokens']:,}, d {content['width']:,}, {content['virtual']} virtual"
        place = f"{content['device_name']}, {content['threads']} threads"
        blocks.append(
            table(("stage", "seconds", "peak GB until then"), lines, f"{shape}; {place}: {in_all}")
        )
        headlines.append(Headline(f"calibration, {shape}", evidence.cite(content, in_all)))
    return Section(name, title, joined(blocks), headlines)


def calibration_command(content: Content) -> str:
    """With every setting."""
    names = ("tokens", "width", "keep", "virtual", "states", "samples", "recorded", "dtype")
    options = " ".join(f"--{name} {content[name]}" for name in names)
    return f"python -m profiling.calibration_scale {options}"
