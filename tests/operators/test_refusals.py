"""A wrong shape, dtype, device or layout is refused: the error names operator and argument.

What is wrong is for the contract to say (rdk_cuda/_ops/contract.py), and what is tried are the
changes that the fuzzer tries at random.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
import torch

from rdk_cuda._ops.contract import OPERATORS, Number
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.proof.fuzz.changes import KINDS
from tests.proof.fuzz.judge import refusals

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

TRIES = 3  # of changes that are drawn at random
TENSORS = [(operator, name) for operator, each in OPERATORS.items() for name in each.tensors]
NUMBERS = [
    (operator, name, wrong)
    for operator, each in OPERATORS.items()
    for name, rule in each.arguments.items()
    if isinstance(rule, Number)
    for wrong in (rule.least - 1, rule.most + 1)
]


def calls() -> dict[str, dict[str, Any]]:
    """A valid call of each operator, with every optional argument, by name."""
    return {operator: generators.call(operator) for operator in OPERATORS}


def refusal(operator: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """The argument that an operator complains about, and the whole message."""
    with pytest.raises(RuntimeError) as error:
        getattr(torch.ops.rdk, operator)(**arguments)
    found = re.search(rf"rdk::{operator}: (\w+) (.*), but needs (.*)", str(error.value), re.DOTALL)
    assert found, str(error.value)
    assert found[1] in arguments
    return found[1], found[0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_calls_are_valid(operator: str) -> None:
    arguments = generators.call(operator)
    assert not refusals(operator, arguments)
    getattr(torch.ops.rdk, operator)(**arguments)


@pytest.mark.parametrize(("operator", "name"), TENSORS)
def test_a_changed_argument_is_refused_by_name_or_served(operator: str, name: str) -> None:
    """In each way that it can be changed: its dtype, rank, size, layout, device, or None."""
    valid, refused = generators.call(operator), 0
    tried = {
        f"{kind}, {i}": change(valid[name], Random(i))
        for kind, (_, change) in KINDS.items()
        for i in range(TRIES)
    }
    for kind, changed in (tried | {"on another device": valid[name].to("meta")}).items():
        arguments = {**valid, name: changed}
        reasons = refusals(operator, arguments)
        if reasons:
            complained, message = refusal(operator, arguments)
            assert complained in reasons, f"{kind}: {message}, although {reasons}"
            refused += 1
        elif not OPERATORS[operator].tensors[name].affinity:  # whose values are trusted
            getattr(torch.ops.rdk, operator)(**arguments)
    assert refused >= TRIES


@pytest.mark.parametrize(("operator", "name", "wrong"), NUMBERS)
def test_a_number_out_of_range_is_refused(operator: str, name: str, wrong: int) -> None:
    complained, message = refusal(operator, generators.call(operator) | {name: wrong})
    assert complained == name
    assert str(wrong) in message


def test_rows_and_columns_that_32_bits_do_not_count_are_refused() -> None:
    affinity = Affinity.intersection(Vocabulary.identity(3))
    many = torch.zeros(1, 3).expand(2**31, 3)
    with pytest.raises(RuntimeError, match=r"rdk::draft: draft_logits has 2147483648 rows"):
        torch.ops.rdk.draft(many, *[torch.zeros(1)] * 3, *affinity.by_draft)
    wide = torch.empty(2**28 + 1, dtype=torch.float16)  # never touched, so it takes no memory
    with pytest.raises(RuntimeError, match=r"rdk::draft: draft_logits has 268435457 columns"):
        torch.ops.rdk.draft(wide, *[torch.zeros(1)] * 3, *affinity.by_draft)


@pytest.mark.parametrize("operator", ["redistribute", "draft", "verify"])
def test_logits_and_an_affinity_of_another_width_are_both_named(operator: str) -> None:
    arguments = generators.call(operator)
    width = arguments["draft_logits"].shape[1]
    wider = torch.cat([arguments["draft_logits"], arguments["draft_logits"][:, :1]], dim=-1)
    for logits in (wider, arguments["draft_logits"][:, 1:]):
        refused, message = refusal(operator, {**arguments, "draft_logits": logits})
        assert refused == "draft_logits"
        assert f"has {logits.shape[1]} columns, but needs {width}, the drafter tokens" in message


@pytest.mark.parametrize("operator", ["redistribute", "draft", "gather_logits"])
def test_strides_of_tensors_without_elements_do_not_matter(operator: str) -> None:
    """NumPy's arrays without elements arrive with strides of 0."""
    arguments = generators.call(operator)
    rules = OPERATORS[operator].tensors
    for name in [name for name, rule in rules.items() if rule.shape.startswith("...")]:
        empty = arguments[name][:0]
        arguments[name] = torch.as_strided(empty, empty.shape, [0] * empty.dim())
    result = getattr(torch.ops.rdk, operator)(**arguments)
    for output in result if isinstance(result, tuple) else (result,):
        assert output.shape[0] == 0
