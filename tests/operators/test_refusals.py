"""A wrong shape, dtype, device or layout is refused: the error names operator and argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

B, K, V_T, C, D = 3, 2, 40, 4, 16  # Sequences, drafts each, target ids, dynamic columns, hidden.


@cache
def valid_calls() -> dict[str, dict[str, Any]]:
    affinity = generators.affinity("mixed-2", V_T)
    batch = generators.batch(affinity, [K] * B, dynamic=C)
    trees = generators.trees([K] * B, V_T)
    rows = B * K
    # Given in tests/operators/test_truncated_drafts.py, on the CPU.
    limits = dict.fromkeys(("top_k", "top_p", "min_p"))
    given: dict[str, dict[str, Any]] = {
        "redistribute": {"temperature": torch.ones(rows), **limits},
        "draft": {
            **limits,
            "temperature": torch.ones(rows),
            "step_keys": torch.arange(rows),
            "positions": torch.arange(rows),
        },
        "verify": {
            "draft_stats": torch.ones(rows, 2 + affinity.rank),
            "draft_rows": torch.arange(rows, dtype=torch.int32),
            "max_draft": K,
            **limits,
            "allowed": None,
            "logprobs": 0,
            "method": 0,
        },
        "verify_tree": {
            **{
                name: getattr(trees, name)
                for name in ("tree_token_ids", "parents", "tree_offsets", "temperature")
            },
            "target_logits": trees.target_logits,
            "max_depth": K,
            **limits,
            "allowed": None,
        },
        "gather_logits": {
            "hidden": torch.ones(rows, D),
            "weight": torch.ones(V_T, D),
            "tokens": torch.zeros(rows, C, dtype=torch.int64),
            "bias": torch.ones(V_T),
        },
        "step_keys": {"seeds": torch.arange(B), "positions": torch.arange(B)},
    }

    def argument(operator: str, name: str) -> Any:
        if name in given[operator]:
            return given[operator][name]
        return getattr(batch if hasattr(batch, name) else affinity, name)

    return {
        operator: {
            value.name: argument(operator, value.name)
            for value in getattr(torch.ops.rdk, operator).default._schema.arguments
        }
        for operator in given
    }


def calls() -> dict[str, dict[str, Any]]:
    """A valid call of each operator, with every optional argument, by name."""
    return {operator: dict(arguments) for operator, arguments in valid_calls().items()}


TENSORS = [
    (operator, name)
    for operator, arguments in calls().items()
    for name, value in arguments.items()
    if isinstance(value, Tensor)
]
FIRST = {operator: next(iter(arguments)) for operator, arguments in calls().items()}


def refusal(operator: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """The argument that an operator complains about, and the whole message."""
    with pytest.raises(RuntimeError) as error:
        getattr(torch.ops.rdk, operator)(**arguments)
    found = re.search(rf"rdk::{operator}: (\w+) (.*), but needs (.*)", str(error.value), re.DOTALL)
    assert found, str(error.value)
    assert found[1] in arguments
    return found[1], found[0]


@pytest.mark.parametrize("operator", calls())
def test_the_calls_are_valid(operator: str) -> None:
    getattr(torch.ops.rdk, operator)(**calls()[operator])


def of_another_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int16)


def with_spaced_columns(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


OPTIONAL = {"bias", "draft_stats", "draft_rows", "dynamic_tokens", "dynamic_logits"}
CHANGES: list[tuple[str, str, Callable[[Tensor], Tensor | None], str]] = [
    (operator, name, change, found)
    for operator, name in TENSORS
    for change, found in (
        (of_another_dtype, "has dtype (Double|Short)"),
        (with_spaced_columns, "contiguous"),
        *([(lambda tensor: tensor.to("meta"), "device")] if name != FIRST[operator] else []),
        # PyTorch passes None on as a tensor that is not defined.
        *([(lambda _: None, "is None")] if name not in OPTIONAL else []),
    )
]


@pytest.mark.parametrize(("operator", "name", "change", "found"), CHANGES)
def test_a_dtype_layout_device_or_none_is_refused_by_name(
    operator: str, name: str, change: Callable[[Tensor], Tensor | None], found: str
) -> None:
    arguments = calls()[operator]
    refused, message = refusal(operator, {**arguments, name: change(arguments[name])})
    assert refused == name
    assert re.search(found, message)


MIXED_HALF = [
    ("redistribute", "dynamic_logits"),
    ("draft", "dynamic_logits"),
    ("verify", "dynamic_logits"),
    ("gather_logits", "weight"),
    ("gather_logits", "bias"),
]


@pytest.mark.parametrize(("operator", "name"), MIXED_HALF)
def test_logits_that_belong_together_have_one_dtype(operator: str, name: str) -> None:
    arguments = calls()[operator]
    arguments[name] = arguments[name].bfloat16()
    assert refusal(operator, arguments)[0] == name


def test_target_and_drafter_may_differ_in_dtype() -> None:
    arguments = calls()["verify"]
    arguments["target_logits"] = arguments["target_logits"].bfloat16()
    torch.ops.rdk.verify(**arguments)


@pytest.mark.parametrize(("operator", "name"), TENSORS)
def test_one_dimension_more(operator: str, name: str) -> None:
    arguments = calls()[operator]
    arguments[name] = arguments[name][None]
    refused, _ = refusal(operator, arguments)
    # The leading shape is free where an operator is elementwise over rows: the others then differ.
    free = name == FIRST[operator] and not operator.startswith("verify")
    assert (refused != name) if free else (refused == name)


# What an argument's size is compared with may come first or second in the complaint.
DEFINED_TOGETHER = {
    "col_drafts": {"col_drafts", "col_weights"},
    "col_offsets": {"col_offsets", "prior", "target_logits"},
    "row_targets": {"row_targets", "row_cdf"},
    "prior_cdf": {"prior_cdf", "spread", "spread_cdf"},
    "spread": {"spread", "spread_cdf", "prior", "prior_cdf"},
    "dynamic_tokens": {"dynamic_tokens", "dynamic_logits"},
    "hidden": {"hidden", "weight"},
    "draft_logits": {"draft_logits", "bias", "spread", "row_offsets"},
    "draft_offsets": {"draft_offsets", "target_logits", "target_temperature"},
    "draft_token_ids": {"draft_token_ids", "target_logits", "draft_rows"},
    "tree_offsets": {"tree_offsets", "target_logits", "temperature"},
    "tree_token_ids": {"tree_token_ids", "target_logits", "parents"},
    "step_keys": {"step_keys", "positions"},
    "seeds": {"seeds", "positions"},
}
# What alone defines a size: C in gather_logits, V_t in draft and verify_tree. Stats of truncated
# drafts have one column more (tests/operators/test_truncated_drafts.py).
FREE = {
    ("gather_logits", "tokens"),
    ("draft", "prior_cdf"),
    ("verify", "draft_stats"),
    ("verify_tree", "target_logits"),
}


@pytest.mark.parametrize(("operator", "name"), [tensor for tensor in TENSORS if tensor not in FREE])
def test_one_more_in_the_last_dimension(operator: str, name: str) -> None:
    arguments = calls()[operator]
    tensor = arguments[name]
    arguments[name] = torch.cat([tensor, tensor[..., :1]], dim=-1)
    refused, _ = refusal(operator, arguments)
    assert refused in DEFINED_TOGETHER.get(name, {name})


ROW_COUNTS = [
    (operator, name)
    for operator, name in TENSORS
    if calls()[operator][name].dim() == 2 and name != "target_logits"
]


@pytest.mark.parametrize(("operator", "name"), ROW_COUNTS)
def test_one_row_less(operator: str, name: str) -> None:
    arguments = calls()[operator]
    arguments[name] = arguments[name][:-1]
    refused, _ = refusal(operator, arguments)
    if name in ("draft_logits", "hidden", "weight"):
        # It is the others that do not fit it any more.
        assert refused != FIRST[operator] or operator == "verify"
    else:
        assert refused in {name, *DEFINED_TOGETHER.get(name, ())}


@pytest.mark.parametrize("operator", ["verify", "verify_tree"])
def test_too_few_target_rows(operator: str) -> None:
    arguments = calls()[operator]
    arguments["target_logits"] = arguments["target_logits"][:-1]
    refused, message = refusal(operator, arguments)
    assert refused == "target_logits"
    assert str(B * K + B) in message


def test_more_target_rows_are_padding() -> None:
    arguments = calls()["verify"]
    expected = torch.ops.rdk.verify(**arguments)
    padding = torch.full((5, V_T), torch.nan)
    arguments["target_logits"] = torch.cat([arguments["target_logits"], padding])
    for actual, same in zip(torch.ops.rdk.verify(**arguments), expected, strict=True):
        assert torch.equal(actual, same)


@pytest.mark.parametrize(
    ("operator", "name"), [("verify", "max_draft"), ("verify_tree", "max_depth")]
)
@pytest.mark.parametrize("most", [-1, 2**31 - 1])
def test_a_negative_or_huge_number_of_drafts(operator: str, name: str, most: int) -> None:
    arguments = calls()[operator]
    arguments[name] = most
    refused, message = refusal(operator, arguments)
    assert refused == name
    assert str(most) in message


@pytest.mark.parametrize("operator", ["redistribute", "draft", "verify"])
@pytest.mark.parametrize("missing", ["dynamic_tokens", "dynamic_logits"])
def test_dynamic_tokens_and_logits_come_together(operator: str, missing: str) -> None:
    arguments = calls()[operator]
    arguments[missing] = None
    assert refusal(operator, arguments)[0] in ("dynamic_tokens", "dynamic_logits")


EMPTY: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
    ("redistribute", "draft_logits", lambda tensor: tensor[:, :0]),
    ("draft", "draft_logits", lambda tensor: tensor[:, :0]),
    ("verify", "draft_logits", lambda tensor: tensor[:, :0]),
    ("verify", "target_logits", lambda tensor: tensor[:, :0]),
    ("verify", "draft_offsets", lambda tensor: tensor[:0]),
    ("verify", "col_offsets", lambda tensor: tensor[:0]),
    ("redistribute", "col_offsets", lambda tensor: tensor[:1]),
    ("gather_logits", "hidden", lambda tensor: tensor[:, :0]),
]


@pytest.mark.parametrize(("operator", "name", "emptied"), EMPTY)
def test_an_empty_vocabulary(operator: str, name: str, emptied: Callable[[Tensor], Tensor]) -> None:
    arguments = calls()[operator]
    arguments[name] = emptied(arguments[name])
    assert refusal(operator, arguments)[0] in {name, *DEFINED_TOGETHER.get(name, ())}


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
    arguments = calls()[operator]
    width = arguments["draft_logits"].shape[1]
    wider = torch.cat([arguments["draft_logits"], arguments["draft_logits"][:, :1]], dim=-1)
    for logits in (wider, arguments["draft_logits"][:, 1:]):
        refused, message = refusal(operator, {**arguments, "draft_logits": logits})
        assert refused == "draft_logits"
        assert f"has {logits.shape[1]} columns, but needs {width}, the drafter tokens" in message


@pytest.mark.parametrize("operator", ["redistribute", "draft", "gather_logits"])
def test_strides_of_tensors_without_elements_do_not_matter(operator: str) -> None:
    """NumPy's arrays without elements arrive with strides of 0."""
    arguments = calls()[operator]
    rows = {"temperature", "step_keys", "positions", "dynamic_tokens", "dynamic_logits", "tokens"}
    for name in (rows | {FIRST[operator]}) & set(arguments):
        empty = arguments[name][:0]
        arguments[name] = torch.as_strided(empty, empty.shape, [0] * empty.dim())
    result = getattr(torch.ops.rdk, operator)(**arguments)
    for output in result if isinstance(result, tuple) else (result,):
        assert output.shape[0] == 0


def test_an_empty_array_of_numpy_is_drafted_from() -> None:
    affinity = Affinity.intersection(Vocabulary.identity(7))
    logits = np.zeros((0, 7), dtype=np.float32)
    draft = rdk_cuda.draft(
        torch.from_numpy(logits)[:, None], affinity, seeds=torch.empty(0).long(), positions=0
    )
    assert draft.tokens.shape == (0, 1)
