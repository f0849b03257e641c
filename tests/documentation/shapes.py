"""The shapes and dtypes in the tables of docs/design.md, "Tensors", from the operators' contract.

`python -m tests.documentation.shapes` writes the tables' second column. A row is of the names in
its first column, in the operators that follow "of", or in all that have no row of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rdk_cuda._ops.contract import OPERATORS, Argument, Number

from .markdown import DESIGN

Rule = Argument | Number
Names = set[tuple[str, str]]  # operator, and argument or result
# The page explains "packed", and how the shapes of these operators are read.
PACKED = {"verify", "verify_step", "verify_tree", "verify_shard"}
BY_SEQUENCE = {*PACKED, "draft_step", "sum_shard"}
IN_A_STEP = {
    "B, J + 1, ": ">= N + B, ",
    "B, J + 1": "B, max_draft + 1",
    "B, J": "N",
    "B, K, ": "M, ",
}
DTYPES = {("bfloat16", "float16", "float32"): "*float*", ("int32", "int64"): "*int*"}
START, RESULTS, END = "### Tensors", "| result |", "### One distribution, not two"


def listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def shape_in_words(rule: Rule) -> str:
    if isinstance(rule, Number):
        powers = {2**31 - 2: "2^31 - 2", 2**32 - 1: "2^32 - 1", 2**18: "2^18", 2**28: "2^28"}
        most = powers.get(rule.most, rule.most)
        return f"int from {rule.least} to {most}"
    rows, _, last = rule.shape.rpartition(", ")
    choices = [f"`[{rows + ', ' if rows else ''}{each}]`" for each in last.split(" or ")]
    return " or ".join(choices) + (" or `[0]`" if rule.if_asked else "")


def dtype_in_words(rule: Rule) -> str:
    if isinstance(rule, Number):
        return ""
    if rule.dtype_of is not None:
        return f"dtype of `{rule.dtype_of}`"
    names = sorted(str(dtype).removeprefix("torch.") for dtype in rule.dtypes)
    return DTYPES.get(tuple(names)) or listed(names, "or")


def where(operators: list[str], users: list[str]) -> str:
    if {*operators} == PACKED & {*users}:
        return "packed"
    return f"in {listed([f'`{operator}`' for operator in operators])}"


def as_read(operator: str, rule: Rule, rules: Iterable[Rule]) -> Rule:
    """The rule with the shape that the page lets this operator share with others."""
    if isinstance(rule, Number):
        return rule
    shape = rule.shape
    if operator == "verify_step":
        own = next(filter(shape.startswith, IN_A_STEP), "")
        shape = IN_A_STEP.get(own, "") + shape.removeprefix(own)
    of_any_rows = f"...{shape.removeprefix('B')}"
    if operator in BY_SEQUENCE and of_any_rows in {getattr(each, "shape", "") for each in rules}:
        shape = of_any_rows
    return rule._replace(shape=shape)


def cell(rules: dict[str, Rule]) -> tuple[str, str]:
    """The shapes of one name, which may differ from operator to operator, and its dtype."""
    users: dict[str, list[str]] = {}
    for operator, rule in rules.items():
        shape = shape_in_words(as_read(operator, rule, rules.values()))
        users.setdefault(shape, []).append(operator)
    (first, _), *others = users.items()
    shapes = [first, *(f"{where(names, [*rules])} {shape}" for shape, names in others)]
    return ", ".join(shapes), dtype_in_words(next(iter(rules.values())))


def joined(cells: list[tuple[str, str]]) -> str:
    """Each shape once, with the dtypes of the names that have it."""
    dtypes: dict[str, list[str]] = {}
    for shape, dtype in cells:
        dtypes.setdefault(shape, []).append(dtype)
    each = [
        ", ".join(filter(None, [shape, listed(list(dict.fromkeys(names)))]))
        for shape, names in dtypes.items()
    ]
    return "; ".join(each)


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def table(text: str, rules: dict[str, dict[str, Rule]]) -> tuple[str, Names]:
    """A table with its second column anew, and what its rows are of."""
    rows = [line[2:].split(" | ", 2) for line in text.split("\n") if line.startswith("| `")]
    heads = [
        (words(names), words(of)) for names, _, of in (row[0].partition(" of ") for row in rows)
    ]
    apart = {(operator, name) for names, of in heads for operator in of for name in names}
    covered: Names = set()
    for (head, old, meaning), (names, of) in zip(rows, heads, strict=True):
        cells = []
        for name in names:
            its = {
                operator: each[name]
                for operator, each in rules.items()
                if name in each and (operator in of or (not of and (operator, name) not in apart))
            }
            covered |= {(operator, name) for operator in its}
            cells.append(cell(its))
        new = joined(cells)
        text = text.replace(f"| {head} | {old} | {meaning}", f"| {head} | {new} | {meaning}")
    return text, covered


def filled(page: str) -> tuple[str, Names, Names]:
    """The page, and the arguments and results that it explains."""
    before, rest = page.split(START)
    tables, after = rest.split(END)
    of_arguments, of_results = tables.split(RESULTS)
    arguments = {name: dict(each.arguments) for name, each in OPERATORS.items()}
    results: dict[str, dict[str, Rule]] = {n: {**each.results} for n, each in OPERATORS.items()}
    first, explained = table(of_arguments, arguments)
    second, returned = table(of_results, results)
    return before + START + first + RESULTS + second + END + after, explained, returned


if __name__ == "__main__":
    DESIGN.write_text(filled(DESIGN.read_text(encoding="utf-8"))[0], encoding="utf-8")
