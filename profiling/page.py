"""`python -m profiling.page`: all committed results as one HTML page.

One file, for any browser, without a network: tables, plots, and for every figure a link to the row
of the file that holds it, with commit, device and command. It reads results and measures nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rdk_cuda.__main__ import INTERRUPTED, Parser
from rdk_cuda.commands.arguments import refuse_missing
from rdk_cuda.commands.errors import InputError
from rdk_cuda.commands.files import write_whole

from .evidence import Evidence
from .machine import ROOT, git
from .markup import Html, element, joined, paragraph, table
from .page_parts import Section
from .results import ResultError

RESULTS = ROOT / "profiling" / "results"
PAGE = ROOT / "report.html"
STYLE = Path(__file__).with_name("page.css")


def parser() -> Parser:
    """The command line."""
    parser = Parser(prog="python -m profiling.page", description=__doc__)
    add = parser.add_argument
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="folder (%(default)s)")
    add("--output", type=Path, default=PAGE, metavar="FILE", help="the page (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        write_page(options.results, options.output)
    except (InputError, ResultError) as error:
        print(f"{command.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        return INTERRUPTED
    print(f"written to {options.output}")
    return 0


def write_page(results: Path, output: Path) -> None:
    """Read every result file and write the page, whole or not at all.

    Raises:
        InputError, ResultError: a file that cannot be read, or written.
    """
    refuse_missing(["matplotlib"])
    if not results.is_dir():
        raise InputError(f"--results: there is no folder {results}")
    text = document(results, output)
    try:
        write_whole(output, lambda beside: beside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--output: {output}: {error.strerror}; needs a file to write to"
        ) from None


def document(results: Path, output: Path) -> str:
    """The whole page."""
    inside = results.resolve().is_relative_to(ROOT)
    evidence = Evidence(ROOT if inside else results, output)
    sections = list(all_sections(evidence, results))
    sections.append(
        Section(
            "rows",
            "The rows behind the figures",
            joined(
                [
                    paragraph(
                        "Under each file and run: when, on what, at which commit and how it was "
                        "measured, and every row that a figure above links to."
                    ),
                    evidence.appendix(),
                ]
            ),
        )
    )
    return page(sections)


def all_sections(evidence: Evidence, results: Path) -> list[Section]:
    """In the order of the page. What they import needs matplotlib."""
    from . import page_acceptance, page_checks, page_speed

    benchmarks = page_speed.Benchmarks(evidence, results)
    makers: dict[str, Callable[[], Section]] = {
        "acceptance": lambda: page_acceptance.acceptance(evidence, results),
        "operators": lambda: page_speed.operators(evidence, benchmarks),
        "roofline": lambda: page_speed.bandwidth(evidence, benchmarks),
        "scaling": lambda: page_speed.scaling(evidence, benchmarks, results),
        "demo": lambda: page_acceptance.demo(evidence, results),
        "soak": lambda: page_checks.soak(evidence, results),
        "fuzz": lambda: page_checks.fuzz(evidence, results),
        "calibration": lambda: page_acceptance.calibration(evidence, results),
        "others": lambda: page_checks.others(evidence, results),
    }
    sections = []
    for name, make in makers.items():
        try:
            sections.append(make())
        except (LookupError, TypeError, ValueError) as error:
            raise ResultError(
                f"section {name}: a file lacks {error} or holds something else; measure it again"
            ) from error
    return sections


def page(sections: Sequence[Section]) -> str:
    """Head, contents, the main figures, and the sections."""
    title = "rdk_cuda: what was measured"
    commit = git("rev-parse", "HEAD")
    written = f"Written at commit {commit[:12]}." if commit else "Written outside of a repository."
    contents = element(
        "nav",
        element(
            "ul",
            *(element("li", element("a", each.title, href=f"#{each.name}")) for each in sections),
        ),
        aria_label="Contents",
    )
    headlines = [
        (headline.words, headline.figure) for each in sections for headline in each.headlines
    ]
    header = element(
        "header",
        element("h1", title),
        paragraph(
            "Lossless speculative sampling with reduced-vocabulary drafters, as PyTorch operators: "
            "a pruned drafter is cheap, and redistributing its probability lets it propose what "
            "was pruned. This page has every figure that is committed. ",
            written,
            " Each figure is a link to its row, with commit, device and command.",
        ),
        contents,
        table(("", "figure"), headlines, "In short") if headlines else "",
    )
    body = [
        element("section", element("h2", each.title), each.body, id=each.name) for each in sections
    ]
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            element("title", title),
            element("style", Html(STYLE.read_text(encoding="utf-8"))),
        ]
    )
    whole = element(
        "html",
        element("head", head),
        element("body", header, element("main", *body)),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{whole}\n"


if __name__ == "__main__":
    sys.exit(main())
