"""What docs/design.md section 4 accepts, as a table, and a judge who reads nothing but the table.

A shape is a tuple of symbols, which stand for the same size wherever an operator names them; "..."
is any number of leading dimensions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LOGITS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT, INT, LONG = (torch.float32,), (torch.int32,), (torch.int64,)
MAX_PRIORS = 4
MAX_DRAFT = 2**31 - 2


@dataclass(frozen=True)
class Argument:
    shape: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    layout: str = "plain"  # contiguous; "rows": only each row is; "contiguous": not even one shape
    optional: bool = False
    dtype_of: str | None = None  # the argument whose dtype this one shares
    affinity: bool = False  # its values are trusted


def affinity(
    *shape: str, dtypes: tuple[torch.dtype, ...] = FLOAT, optional: bool = False
) -> Argument:
    return Argument(shape, dtypes, optional=optional, affinity=True)


def dynamic(rows: str) -> dict[str, Argument]:
    return {
        "dynamic_tokens": Argument((rows, "C"), INT, "rows", optional=True),
        "dynamic_logits": Argument(
            (rows, "C"), LOGITS, "rows", optional=True, dtype_of="draft_logits"
        ),
    }


def limits(rows: str) -> dict[str, Argument]:
    return {
        "top_k": Argument((rows,), INT, optional=True),
        "top_p": Argument((rows,), FLOAT, optional=True),
        "min_p": Argument((rows,), FLOAT, optional=True),
    }


COLUMNS = {
    "bias": affinity("V_d", optional=True),
    "col_offsets": affinity("V_t + 1", dtypes=INT),
    "col_drafts": affinity("nnz", dtypes=INT),
    "col_weights": affinity("nnz"),
    "spread": affinity("V_d", "R"),
    "prior": affinity("R", "V_t"),
}
ROWS = {
    "bias": affinity("V_d", optional=True),
    "row_offsets": affinity("V_d + 1", dtypes=INT),
    "row_targets": affinity("nnz", dtypes=INT),
    "row_cdf": affinity("nnz", dtypes=LONG),
    "row_top": affinity("V_d", dtypes=INT),
    "spread": affinity("V_d", "R"),
    "spread_cdf": affinity("V_d", "R", dtypes=LONG),
    "prior_cdf": affinity("R", "V_t", dtypes=LONG),
}
OPERATORS: dict[str, dict[str, Argument]] = {
    "redistribute": {
        "draft_logits": Argument(("...", "V_d"), LOGITS, "rows"),
        "temperature": Argument(("...",), FLOAT),
        **COLUMNS,
        "row_top": affinity("V_d", dtypes=INT),
        **dynamic("..."),
        **limits("..."),
    },
    "draft": {
        "draft_logits": Argument(("...", "V_d"), LOGITS, "rows"),
        "temperature": Argument(("...",), FLOAT),
        "step_keys": Argument(("...",), LONG),
        "positions": Argument(("...",), LONG),
        **ROWS,
        **dynamic("..."),
        **limits("..."),
    },
    "verify": {
        "target_logits": Argument(("target rows", "V_t"), LOGITS, "rows"),
        "draft_logits": Argument(("M", "V_d"), LOGITS, "rows"),
        "draft_stats": Argument(("M", "stats"), FLOAT, optional=True),
        "draft_rows": Argument(("N",), INT, optional=True),
        "draft_token_ids": Argument(("N",), (*LONG, *INT)),
        "draft_offsets": Argument(("B + 1",), INT),
        "target_temperature": Argument(("B",), FLOAT),
        "draft_temperature": Argument(("B",), FLOAT),
        "step_keys": Argument(("B",), LONG),
        "positions": Argument(("B",), LONG),
        **COLUMNS,
        **dynamic("M"),
        **limits("B"),
        "allowed": Argument(("allowed rows", "words"), INT, "rows", optional=True),
    },
    "verify_tree": {
        "target_logits": Argument(("target rows", "V_t"), LOGITS, "rows"),
        "tree_token_ids": Argument(("N",), (*LONG, *INT)),
        "parents": Argument(("N",), INT),
        "tree_offsets": Argument(("B + 1",), INT),
        "temperature": Argument(("B",), FLOAT),
        "step_keys": Argument(("B",), LONG),
        "positions": Argument(("B",), LONG),
        **limits("B"),
        "allowed": Argument(("allowed rows", "words"), INT, "rows", optional=True),
    },
    "gather_logits": {
        "hidden": Argument(("...", "d"), LOGITS, "rows"),
        "weight": Argument(("V", "d"), LOGITS, "rows", dtype_of="hidden"),
        "tokens": Argument(("...", "C"), (*INT, *LONG)),
        "bias": Argument(("V",), LOGITS, optional=True, dtype_of="hidden"),
    },
    "step_keys": {
        "seeds": Argument(("...",), LONG),
        "positions": Argument(("...",), LONG),
    },
}
AT_LEAST_ONE = {"V_d", "V_t", "d"}

Sizes = dict[str, Any]  # symbol to size; "..." to a tuple


class RefusedError(Exception):
    """The contract refuses a call, for this reason."""


def sizes_of(operator: str, arguments: dict[str, Any]) -> Sizes:
    """The size of each symbol in a call that the contract accepts, or `RefusedError`."""
    sizes: Sizes = {}
    for name, rule in OPERATORS[operator].items():
        value = arguments[name]
        if value is None:
            if not rule.optional:
                raise RefusedError(f"{name} is missing")
            continue
        check_dtype(name, rule, arguments)
        for symbol, size in symbols(name, rule.shape, value):
            if sizes.setdefault(symbol, size) != size:
                raise RefusedError(f"{name} has {symbol} = {size}, not {sizes[symbol]}")
        check_layout(name, rule, value)
    check_together(arguments, sizes)
    return sizes


def check_dtype(name: str, rule: Argument, arguments: dict[str, Any]) -> None:
    allowed = rule.dtypes
    if rule.dtype_of is not None and arguments[rule.dtype_of] is not None:
        allowed = (arguments[rule.dtype_of].dtype,)
    if arguments[name].dtype not in allowed:
        raise RefusedError(f"{name} has dtype {arguments[name].dtype}")


def symbols(name: str, shape: tuple[str, ...], value: Tensor) -> list[tuple[str, Any]]:
    """The symbols of an argument's shape, with the sizes that the tensor gives them."""
    found: list[tuple[str, Any]] = []
    actual = tuple(value.shape)
    if shape[0] == "...":
        named = len(shape) - 1
        if len(actual) < named:
            raise RefusedError(f"{name} has {len(actual)} dimensions")
        found.append(("...", actual[: len(actual) - named]))
        shape, actual = shape[1:], actual[len(actual) - named :]
    if len(actual) != len(shape):
        raise RefusedError(f"{name} has {len(actual)} dimensions")
    for symbol, size in zip(shape, actual, strict=True):
        extra = {"V_t + 1": 1, "V_d + 1": 1, "B + 1": 1, "2 + R": 2}.get(symbol, 0)
        if size < extra:
            raise RefusedError(f"{name} has {size} for {symbol}")
        plain = symbol.replace(" + 1", "").replace("2 + ", "")
        if size - extra < (plain in AT_LEAST_ONE):
            raise RefusedError(f"{name} has {plain} = {size - extra}")
        found.append((plain, size - extra))
    return found


def check_layout(name: str, rule: Argument, value: Tensor) -> None:
    if rule.layout == "plain":
        if not value.is_contiguous():
            raise RefusedError(f"{name} is not contiguous")
        return
    if value.numel() and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise RefusedError(f"{name} has stride {value.stride(-1)} in its last dimension")
    if value.numel() and row_strides(value) > 2:
        raise RefusedError(f"{name} has rows with {row_strides(value)} strides")


def row_strides(value: Tensor) -> int:
    """How many strides the leading dimensions need once those that continue each other are one."""
    leading = [
        (size, stride)
        for size, stride in zip(value.shape[:-1], value.stride()[:-1], strict=True)
        if size > 1
    ]
    continued = sum(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(leading))
    return len(leading) - continued


def check_together(arguments: dict[str, Any], sizes: Sizes) -> None:
    if (arguments.get("dynamic_tokens") is None) != (arguments.get("dynamic_logits") is None):
        raise RefusedError("one of dynamic_tokens and dynamic_logits is missing")
    if sizes.get("R", 0) > MAX_PRIORS:
        raise RefusedError(f"R is {sizes['R']}")
    if "max_draft" in arguments:
        wide = sizes.get("stats", 2 + sizes["R"])  # one more for a threshold
        if wide not in (2 + sizes["R"], 3 + sizes["R"]):
            raise RefusedError(f"draft_stats has {wide} columns")
        if not 0 <= arguments["logprobs"] <= 2:
            raise RefusedError(f"logprobs is {arguments['logprobs']}")
        if not 0 <= arguments["method"] <= 1:
            raise RefusedError(f"method is {arguments['method']}")
    if "target rows" in sizes:
        if sizes["target rows"] < sizes["N"] + sizes["B"]:
            raise RefusedError("target_logits has too few rows")
        for name in {"max_draft", "max_depth"} & set(arguments):
            if not 0 <= arguments[name] <= MAX_DRAFT:
                raise RefusedError(f"{name} is {arguments[name]}")
        if sizes.get("words", -(-sizes["V_t"] // 32)) != -(-sizes["V_t"] // 32):
            raise RefusedError(f"allowed has {sizes['words']} words")
        if sizes.get("allowed rows", sizes["target rows"]) < sizes["N"] + sizes["B"]:
            raise RefusedError("allowed has too few rows")
