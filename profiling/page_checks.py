"""The page's sections on correctness, and whatever result files have no section of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from .evidence import Content, Evidence, read_json
from .markup import Cell, Html, element, joined, paragraph, table
from .page_parts import Headline, Section, missing, nothing

MOST_ROWS, MOST_COLUMNS = 60, 24  # of a table that nobody has laid out


def soak(evidence: Evidence, results: Path) -> Section:
    """Frequencies of very many tokens."""
    title, name = "Very many tokens", "soak"
    files = sorted((results / "soak").glob("*.json"))
    if not files:
        return missing(name, title, "python -m tests.soak --tokens 1e9 --log FILE")
    blocks, headlines = [], []
    for file in files:
        content = evidence.open(file, read_json, soak_command)
        cases = content["cases"]
        tests = list(dict.fromkeys(test for case in cases for test in case["p_values"]))
        lines = [
            (
                case["case"],
                "wrong on purpose" if case["control"] else "",
                evidence.cite(case, f"{case['tokens']:,}"),
                *(
                    evidence.cite(case, f"{case['p_values'][test]:.3g}")
                    if test in case["p_values"]
                    else ""
                    for test in tests
                ),
                element("strong", "as it should be" if case["as_it_should_be"] else "NOT as it is"),
            )
            for case in cases
        ]
        level = f"{content['false_alarm_of_one_test']:g}"
        blocks.append(
            table(
                ("sampler", "", "tokens", *(f"p, {test}" for test in tests), ""),
                lines,
                f"{content['tokens']:,} tokens against exact distributions; a right sampler is "
                f"called wrong with probability {level} a test",
                left=2,
            )
        )
        right = sum(case["as_it_should_be"] for case in cases)
        headlines.append(
            Headline(
                "samplers whose output has the distribution it should have, the wrong ones caught",
                joined(
                    [
                        evidence.cite(content, f"{right} of {len(cases)}"),
                        f", {content['tokens']:,} tokens",
                    ]
                ),
            )
        )
    return Section(name, title, joined(blocks), headlines)


def soak_command(content: Content) -> str:
    """The number of tokens is what was asked for, rounded as it was."""
    return f"python -m tests.soak --seed {content['seed']} --tokens {content['tokens']:.1g}"


def fuzz(evidence: Evidence, results: Path) -> Section:
    """Random arguments."""
    title, name = "Any argument", "fuzz"
    files = sorted((results / "fuzz").glob("*.json"))
    if not files:
        return missing(name, title, "python -m tests.fuzz --count 1000000 --resume FILE")
    blocks, headlines = [], []
    for file in files:
        content = evidence.open(file, read_json, fuzz_command)
        accepted: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for outcome, count in content["outcomes"].items():
            operator, _, what = outcome.partition(": ")
            (accepted if what == "accepted" else refused)[operator] += count
        outcomes = content["outcomes"]
        lines = [
            (
                operator,
                evidence.cite(outcomes, f"{accepted[operator]:,}"),
                evidence.cite(outcomes, f"{refused[operator]:,}"),
            )
            for operator in content["operators"]
        ]
        failures = len(content["failures"])
        words = (
            f"{content['sets']:,} random argument sets under sanitizers, "
            f"{content['implementation']}: {failures} failures"
        )
        blocks.append(table(("operator", "served as promised", "refused by name"), lines, words))
        headlines.append(
            Headline(
                f"random argument sets, {content['implementation']}",
                joined(
                    [
                        evidence.cite(content, f"{content['sets']:,}"),
                        f", {failures} failure{'' if failures == 1 else 's'}",
                    ]
                ),
            )
        )
    return Section(name, title, joined(blocks), headlines)


def fuzz_command(content: Content) -> str:
    """With its seed and count."""
    command = f"python -m tests.fuzz --seed {content['seed']} --count {content['sets']}"
    return f"{command} --implementation {content['implementation']}"


def others(evidence: Evidence, results: Path) -> Section:
    """Result files of other kinds: their rows as they are."""
    title, name = "Other results", "others"
    seen = {source.path for source in evidence.sources}
    blocks = []
    for file in sorted(results.rglob("*.json")):
        if file.resolve() not in seen:
            content = evidence.open(file, read_json)
            blocks.append(as_it_is(evidence, content, str(file.relative_to(results))))
    if not blocks:
        blocks.append(nothing("There are none."))
    words = paragraph("Files without a section of their own, as they are.")
    return Section(name, title, joined([words, *blocks]))


def as_it_is(evidence: Evidence, content: Content, words: str) -> Html:
    """The first list of rows in a file, or its own figures."""
    lists = [
        value
        for value in content.values()
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    ]
    rows: list[dict[str, Any]] = lists[0] if lists else [content]
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(isinstance(row.get(name), (str, int, float)) for row in rows)
    ]
    lines = [
        [evidence.cite(row, cell(row.get(name))) for name in names[:MOST_COLUMNS]]
        for row in rows[:MOST_ROWS]
    ]
    if not names:
        return paragraph(words, ": holds no figures.")
    left = len(rows) - len(lines)
    more = f"; {left} more rows in the file" if left > 0 else ""
    return table(names[:MOST_COLUMNS], lines, f"{words}{more}")


def cell(value: Any) -> Cell:
    """A figure in four digits, words as they are, nothing for anything else."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, (str, int)) else ""
