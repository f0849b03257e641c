"""Any call is refused by name or served as promised, and nothing beside a row changes its bits.

Calls, changes and promises are the fuzzer's (tests/proof/fuzz), made of the contract: the worst
values in every argument, limits, masks, offsets and parents that make no sense. Here they are tried
on every backend, and each draw is compared with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda._ops.contract import IDS, LOGITS, OPERATORS, Argument, sizes_of
from tests.devices import MACHINES
from tests.proof.fuzz import calls, changes
from tests.proof.fuzz.agreement import COMPARED_ALWAYS, comparable
from tests.proof.fuzz.judge import refusals
from tests.proof.fuzz.promises import owned
from tests.proof.fuzz.worker import FailureError, run, try_call
from tests.tolerances import assert_same_bits

EVERY = tuple(OPERATORS)
CHANGES = frozenset(range(3))


def many(device: str, count: int) -> range:
    return range(count // 8 if device in MACHINES else count)


def served(operator: str, indices: range) -> Iterator[calls.Call]:
    """Calls without changes that the contract accepts."""
    for index in indices:
        call = calls.make_call(3, index, (operator,), CHANGES)
        if not refusals(operator, call.arguments):
            yield call


def assert_as_promised(operator: str, indices: range) -> None:
    outcomes = []
    for index in indices:
        call = calls.make_call(0, index, (operator,))
        try:
            outcomes.append(try_call(call, torch.ops.rdk, against_reference=True))
        except FailureError as failure:
            pytest.fail(f"set {index}: {failure}\n{call}")
    accepted = outcomes.count(f"{operator}: accepted")
    assert 0.2 < accepted / len(outcomes) < 1


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("operator", EVERY)
def test_any_call_is_refused_by_name_or_served_as_promised(operator: str, device: str) -> None:
    assert_as_promised(operator, many(device, 200))


@pytest.mark.parametrize("operator", EVERY)
def test_many_of_these_calls_are_compared_with_the_reference(operator: str) -> None:
    given = [call.arguments for call in served(operator, range(60))]
    compared = [comparable(operator, each, sizes_of(operator, each)) for each in given]
    assert operator in COMPARED_ALWAYS or sum(compared) > len(given) / 5


@pytest.mark.ci
@pytest.mark.not_on("cpu")  # where the fuzzer tries more
@pytest.mark.parametrize("operator", EVERY)
def test_many_calls_are_refused_by_name_or_served_as_promised(operator: str, device: str) -> None:
    assert_as_promised(operator, range(1000, 1100))


# ---------------------------------------------------------------------------------- to the bit


def rows_of(operator: str, arguments: dict[str, Any]) -> int:
    """Rows that are decided by themselves: sequences, or all leading dimensions."""
    sizes = sizes_of(operator, arguments)
    return math.prod(sizes["..."]) if "..." in sizes else sizes["B"]


def by_rows(rule: Argument, value: Tensor) -> Tensor:
    """All leading dimensions as one."""
    dimensions = rule.shape.split(", ")
    if dimensions[0] != "...":
        return value
    leading = value.dim() - len(dimensions) + 1
    return value.flatten(0, leading - 1) if leading else value[None]


def alone(operator: str, arguments: dict[str, Any], row: int) -> dict[str, Any]:
    """The call of one row, or of one sequence with what is its own."""
    rules = OPERATORS[operator].tensors
    own_rows = {"...": slice(row, row + 1), "B": slice(row, row + 1)}
    offsets = next((name for name in rules if rules[name].shape == "B + 1"), None)
    if offsets is not None:
        tokens = next(arguments[name] for name in rules if name.endswith("token_ids"))
        start, count = owned(*arguments[offsets][row : row + 2].tolist(), tokens.numel())
        own_rows["N"] = slice(start, start + count)
        own_rows[">= N + B"] = slice(start + row, start + row + count + 1)
        if arguments.get("draft_rows") is None:
            own_rows["M"] = own_rows["N"]

    def own(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if name == offsets:
            return torch.tensor([0, count], dtype=value.dtype)
        return by_rows(rules[name], value)[own_rows.get(rules[name].shape.split(", ")[0], ...)]

    of_row = {name: own(name, value) for name, value in arguments.items()}
    if "slots" in of_row and of_row["slots"] is None:
        of_row["slots"] = torch.tensor([row])
    return of_row


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("operator", [name for name in EVERY if name != "draft_step"])
def test_a_row_or_sequence_has_the_bits_that_it_has_alone(
    operator: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one chunk and of several."""
    compared = 0
    for sizes, indices in (([3, 40], many(device, 40)), ([1100, 2600], many(device, 16))):
        monkeypatch.setattr(calls, "TARGET_SIZES", sizes)
        for call in served(operator, indices):
            together = run(getattr(torch.ops.rdk, operator), call)
            rules = list(OPERATORS[operator].results.values())
            for row in range(rows_of(operator, call.arguments)):
                one = calls.Call(operator, alone(operator, call.arguments, row))
                found = run(getattr(torch.ops.rdk, operator), one)
                for rule, own, all_rows in zip(rules, found, together, strict=False):
                    if all_rows.numel():
                        assert_same_bits(
                            by_rows(rule, own)[0], by_rows(rule, all_rows)[row], f"{one}"
                        )
                        compared += 1
    assert compared > 5


def elsewhere(operator: str, arguments: dict[str, Any], random: Random) -> dict[str, Any]:
    """The same values in other places of memory, and of another width where they fit.

    Ids, and logits where no result has their dtype. A bias that is not given is one of zeros.
    """
    rules, moved = OPERATORS[operator].tensors, dict(arguments)
    of_logits = [n for n, rule in rules.items() if rule.dtypes == LOGITS and moved[n] is not None]
    outputs = [*OPERATORS[operator].results.values(), *(r for r in rules.values() if r.written)]
    if random.random() < 0.5 and all(rule.dtypes != LOGITS for rule in outputs):
        moved |= {name: moved[name].float() for name in of_logits}
    if moved.get("spread") is not None and moved["bias"] is None:
        moved["bias"] = torch.zeros(len(moved["spread"]))
    for name, rule in rules.items():
        value = moved[name]
        if value is None or rule.written:
            continue
        places = [changes.at_an_odd_address]
        if rule.strides:
            places = [changes.in_wider_rows, changes.every_second_row]
        moved[name] = random.choice(places)(value, random)
        if rule.dtypes == IDS and bool((value == value.int()).all()):
            moved[name] = value.to(random.choice(IDS))
        if refusals(operator, moved):  # more strides than rows may have
            moved[name] = value
    return moved


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("operator", EVERY)
def test_where_arguments_lie_in_memory_changes_no_bit(
    operator: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what surrounds them, which is NaN, nor the width of ids and logits."""
    random, laid_out = Random(5), 0
    for sizes, indices in (([17, 40], many(device, 60)), ([1027, 2600], many(device, 24))):
        monkeypatch.setattr(calls, "TARGET_SIZES", sizes)
        for call in served(operator, indices):
            expected = run(getattr(torch.ops.rdk, operator), call)
            other = calls.Call(operator, elsewhere(operator, call.arguments, random))
            found = run(getattr(torch.ops.rdk, operator), other)
            assert_same_bits(found, expected, other)
            laid_out += any(
                value is not call.arguments[name] for name, value in other.arguments.items()
            )
    assert laid_out > 5
