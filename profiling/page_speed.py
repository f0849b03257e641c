"""The page's sections on time: the operators, the roofline, and how time grows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import first_order_growth, growth, roofline
from .cases import PAIR
from .evidence import Evidence, read_json
from .markup import Cell, Html, below, element, joined, paragraph, table
from .page_parts import Headline, Section, missing, nothing, picture
from .regression import span
from .results import BENCH, Row, format_of, latest, read
from .table import figure
from .targets import targets_of

PEERS = ("eager", "sparse", "compiled", "logsumexp", "logsumexp-float")
NO_GPU = "No GPU results yet: nothing on this page was measured on a GPU."
BENCH_COMMAND = "python profiling/bench.py --device cpu --preset targets --growth --output FILE"


class Benchmarks:
    """Every result file of bench.py, opened once for all sections."""

    def __init__(self, evidence: Evidence, results: Path) -> None:
        self.contents = [
            evidence.open(file, read)
            for file in sorted(results.rglob("*.json"))
            if read_json(file).get("format") == format_of(BENCH)
        ]
        self.rows = latest(row for content in self.contents for row in content["rows"])

    @property
    def on_gpu(self) -> bool:
        """Whether any row is of a GPU."""
        return any(row["device"] == "cuda" for row in self.rows)


def operators(evidence: Evidence, benchmarks: Benchmarks) -> Section:
    """Times beside the floor and beside peers."""
    title, name = "Operators", "operators"
    if not benchmarks.rows:
        return missing(name, title, BENCH_COMMAND)
    blocks = [
        paragraph(
            "Medians with a cold cache; below them the middle 80 % of the rounds. The floor is the "
            "bytes that must move over the bandwidth measured in the same run. Peers do the same "
            "work on the same inputs in turn; shown is how many times as long they take. logsumexp "
            "is PyTorch's, over just the target rows that verify looks at."
        )
    ]
    if not benchmarks.on_gpu:
        blocks.append(nothing(NO_GPU))
    headlines = []
    for place, rows in roofline.by_place(benchmarks.rows).items():
        blocks.append(operator_table(evidence, rows, place))
        headlines += fastest(evidence, rows, place)
    blocks.append(target_table(evidence, benchmarks.rows))
    if not benchmarks.on_gpu:
        headlines.append(Headline("on a GPU", element("span", "no results yet", class_="nothing")))
    return Section(name, title, joined(blocks), headlines)


def operator_table(evidence: Evidence, rows: Sequence[Row], place: str) -> Html:
    """The rows of one device; peers that nobody measured are left out."""
    peers = [peer for peer in PEERS if any("ratio" in row["peers"].get(peer, {}) for row in rows)]
    lines = [
        (
            *named(row),
            *(
                evidence.cite(row, text) if text else ""
                for text in (
                    below(figure(row["median_us"]), span(row)),
                    "" if row["warm_us"] is None else figure(row["warm_us"]),
                    f"{row['share_of_floor']:.0%}",
                    *(times(row, peer) for peer in peers),
                )
            ),
        )
        for row in rows
    ]
    titles = ("operator", "shape", "µs", "µs warm", "floor / time")
    return table((*titles, *(f"×\u00a0{peer}" for peer in peers)), lines, place, left=2)


def named(row: Row) -> tuple[Cell, Cell]:
    """Operator and shape."""
    shape = row["case"].removeprefix(row["operator"]).strip()
    return row["operator"], element("span", shape, class_="shape")


def times(row: Row, peer: str) -> str:
    """How many times as long a peer takes."""
    found = row["peers"].get(peer, {})
    return figure(found["ratio"]) if "ratio" in found else ""


def fastest(evidence: Evidence, rows: Sequence[Row], place: str) -> list[Headline]:
    """A decoding step's sampling beside eager PyTorch: the least and the most."""
    steps = [row for row in rows if row["operator"] == PAIR and times(row, "eager")]
    if not steps:
        return []
    ordered = sorted(steps, key=lambda row: row["peers"]["eager"]["ratio"])
    ends = [ordered[0], *ordered[1:][-1:]]
    cited = [evidence.cite(row, times(row, "eager")) for row in ends]
    return [
        Headline(
            f"sampling of a decoding step against eager PyTorch, {place}",
            joined([joined(cited, " to "), " times as fast"]),
        )
    ]


def target_table(evidence: Evidence, rows: Sequence[Row]) -> Html:
    """The figures that the project has set itself, the missed ones too."""
    lines = [
        (
            target.case,
            target.what,
            evidence.cite(row, figure(target.value)),
            f"{'≥' if target.at_least else '≤'} {figure(target.limit)}",
            element("strong", "met" if target.met else "missed"),
        )
        for row in rows
        for target in targets_of(row)
    ]
    if not lines:
        return Html("")
    return table(("case", "what", "measured", "needs", ""), lines, "Targets", left=2)


def bandwidth(evidence: Evidence, benchmarks: Benchmarks) -> Section:
    """The roofline."""
    title, name = "Roofline", "roofline"
    if not benchmarks.rows:
        return missing(name, title, BENCH_COMMAND)
    titles = (
        "operator",
        "shape",
        "MB",
        "bandwidth, GB/s",
        "floor µs",
        "µs",
        "reached, GB/s",
        "share",
    )
    blocks = [
        paragraph(
            "Bytes by formula, as far as target rows are visited, against time. The line is the "
            "measured bandwidth, below which no time can lie that reads from memory. Floors of "
            "operators that mostly write are those of a copy."
        ),
        picture(
            partial(roofline.figure_of, benchmarks.rows),
            "roofline",
            "Time against bytes; the line is the bandwidth measured in the same run.",
        ),
    ]
    for place, rows in roofline.by_place(benchmarks.rows).items():
        lines: list[tuple[Cell, ...]] = []
        for row in rows:
            _, _, amount, speed, kind, *rest = roofline.row_cells(row)
            cells = (amount, f"{speed} ({kind})", *rest)
            lines.append((*named(row), *(evidence.cite(row, text) for text in cells)))
        blocks.append(table(titles, lines, place, left=2))
    return Section(name, title, joined(blocks))


def scaling(evidence: Evidence, benchmarks: Benchmarks, results: Path) -> Section:
    """Exponents and pictures of growth."""
    title, name = "Scaling", "scaling"
    blocks: list[Html] = []
    for number, content in enumerate(benchmarks.contents):
        fits = content.get("growth", [])
        if fits:
            blocks.append(growth_blocks(evidence, fits, f"growth-{number}"))
    file = results / "first-order-growth" / "results.json"
    if file.is_file():
        blocks.append(first_order(evidence, file))
    if not blocks:
        return missing(name, title, BENCH_COMMAND)
    words = paragraph(
        "Time against one size, all others in the middle of their grids, and the exponent fitted "
        "to it: 1 is proportional, 0 constant. Where an operator changes its strategy, few rows "
        "split over threads or multiprocessors or a row for each, that is said and drawn dotted."
    )
    return Section(name, title, joined([words, *blocks]))


def growth_blocks(evidence: Evidence, fits: Sequence[Row], name: str) -> Html:
    """The fits of one file."""
    lines = [
        (
            fit["operator"],
            growth.SYMBOLS[fit["axis"]],
            f"{fit['sizes'][0]:,} to {fit['sizes'][-1]:,}",
            "; ".join(growth.in_words(switch) for switch in growth.switches_of(fit)),
            evidence.cite(fit, f"{fit['exponent']:.2f}"),
            evidence.cite(fit, f"{fit['exponent_of_floor']:.2f}"),
        )
        for fit in fits
    ]
    first = fits[0]
    place = f"{first['device_name']}, {first['dtype']}, {first['sampler']}"
    titles = ("operator", "size", "from ... to", "strategy", "exponent", "of its floor")
    drawn = picture(
        partial(growth.figure_of, fits), name, f"Time against each size, {place}, logarithmic axes."
    )
    return joined([drawn, table(titles, lines, f"Exponents, {place}", left=4)])


def first_order(evidence: Evidence, file: Path) -> Html:
    """First-order RDK beside the dense matrix."""
    content = evidence.open(
        file, read_json, lambda content: "python -m profiling.first_order_growth"
    )
    rows = content["rows"]
    forms = list(content["exponents"])
    by_size: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_size.setdefault(row["size"], {})[row["form"]] = row
    lines = [
        (
            f"{size:,}",
            *(
                evidence.cite(found[form], f"{1000 * found[form]['fastest_seconds']:.3f}")
                if form in found
                else ""
                for form in forms
            ),
        )
        for size, found in sorted(by_size.items())
    ]
    fitted = content["exponents"]
    lines.append(("exponent", *(evidence.cite(fitted, f"{fitted[form]:.2f}") for form in forms)))
    words = "First-order RDK beside the dense matrix: fastest time of 8 rows"
    return joined(
        [
            picture(partial(first_order_growth.picture, rows, content), "first-order", f"{words}."),
            table(("V", *(f"{form}, ms" for form in forms)), lines, words),
        ]
    )
