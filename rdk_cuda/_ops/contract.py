"""The arguments and results of every operator, as docs/design.md section 4 has them, in a table.

A shape is a list of dimensions. A symbol stands for one size wherever an operator names it, "..."
for any number of leading dimensions, and `>= N + B` for at least so many. Fake kernels, the page's
table and what tests try are made of this; the operators' own checks, in csrc/ops, are written by
hand, and the fuzzer holds them to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

NAMESPACE = "rdk"
"""The operators are torch.ops.NAMESPACE's; `make hub-kernel` builds a copy with another one."""

LOGITS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT, INT, LONG = (torch.float32,), (torch.int32,), (torch.int64,)
BOOL = (torch.bool,)
IDS = (*LONG, *INT)
MAX_PRIORS = 4
AT_LEAST_ONE = ("V_d", "V_t", "W", "d")
LIMITS = ("top_k", "top_p", "min_p")
DYNAMIC = ("dynamic_tokens", "dynamic_logits")


class Argument(NamedTuple):
    """A tensor: a result too, where nothing is said of layouts and trust."""

    shape: str
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False
    strides: int = 0  # only each row is contiguous, and rows have at most so many strides
    dtype_of: str | None = None  # the argument whose dtype this one shares
    affinity: bool = False  # its values are trusted
    if_asked: str | None = None  # empty unless this number is given
    needed_with: tuple[str, ...] = ()  # not optional where one of these is given
    written: bool = False  # the call changes it


class Number(NamedTuple):
    """An int."""

    least: int
    most: int


class Operator(NamedTuple):
    """By name, in the order of the schema."""

    arguments: Mapping[str, Argument | Number]
    results: Mapping[str, Argument]
    loses_gradients: bool = False  # so it refuses tensors that require grad
    less: tuple[str, str] | None = None  # a size or a number, and a size that it is less than

    @property
    def tensors(self) -> dict[str, Argument]:
        """The arguments that are."""
        return {n: rule for n, rule in self.arguments.items() if isinstance(rule, Argument)}


def _affinity(**tensors: tuple[str, tuple[torch.dtype, ...]]) -> dict[str, Argument]:
    return {
        name: Argument(shape, dtypes, optional=name == "bias", affinity=True)
        for name, (shape, dtypes) in tensors.items()
    }


def _dynamic(rows: str) -> dict[str, Argument]:
    tokens = Argument(f"{rows}, C", INT, optional=True, strides=2, needed_with=("dynamic_logits",))
    logits = tokens._replace(
        dtypes=LOGITS, dtype_of="draft_logits", needed_with=("dynamic_tokens",)
    )
    return {"dynamic_tokens": tokens, "dynamic_logits": logits}


def _limits(rows: str) -> dict[str, Argument]:
    dtypes = (INT, FLOAT, FLOAT)
    return {n: Argument(rows, d, optional=True) for n, d in zip(LIMITS, dtypes, strict=True)}


_COLUMNS = _affinity(
    bias=("V_d", FLOAT),
    col_offsets=("V_t + 1", INT),
    col_drafts=("nnz", INT),
    col_weights=("nnz", FLOAT),
    spread=("V_d, R", FLOAT),
    prior=("R, V_t", FLOAT),
)
COLUMNS = tuple(_COLUMNS)
_ROWS = _affinity(
    bias=("V_d", FLOAT),
    row_offsets=("V_d + 1", INT),
    row_targets=("nnz", INT),
    row_cdf=("nnz", LONG),
    row_top=("V_d", INT),
    spread=("V_d, R", FLOAT),
    spread_cdf=("V_d, R", LONG),
    prior_cdf=("R, V_t", LONG),
)
_TARGET_LOGITS = {"target_logits": Argument(">= N + B, V_t", LOGITS, strides=2)}
_ALLOWED = {"allowed": Argument(">= N + B, ceil(V_t / 32)", INT, optional=True, strides=2)}
_DRAFT_LOGITS = {"draft_logits": Argument("..., V_d", LOGITS, strides=2)}
_KEYS = {"step_keys": Argument("B", LONG), "positions": Argument("B", LONG)}
_AT_MOST = Number(0, 2**31 - 2)
_METHOD = {"method": Number(0, 1)}
_SHARD_LOGITS = {"target_logits": Argument(">= N + B, W", LOGITS, strides=2)}
_FIRST_CHUNK = {"first_chunk": Number(0, 2**18)}


def _whole_or_not(side: dict[str, Argument]) -> dict[str, Argument]:
    """Where one of them is given, all are needed that are not optional anyway."""
    return {
        n: rule if rule.optional else rule._replace(optional=True, needed_with=tuple(side))
        for n, rule in side.items()
    }


_DRAFTS = {
    "draft_logits": Argument("M, V_d", LOGITS, strides=2),
    "draft_stats": Argument("M, 2 + R or 3 + R", FLOAT, optional=True),
    "draft_rows": Argument("N", INT),
}
_STEP = {
    "step_tokens": Argument("S, K", LONG, written=True),
    "step_stats": Argument("S, K, 2 + R + limited", FLOAT, written=True),
    "step_keys": Argument("S", LONG, written=True),
    "step_logits": Argument("S, K, V_d", LOGITS, dtype_of="draft_logits", written=True),
}
# All four are given together.
_KEPT = {
    name: rule._replace(
        needed_with=tuple(f"{kept}{each}" for kept in ("", "step_") for each in DYNAMIC)
    )
    for name, rule in _dynamic("B").items()
}
_DRAFT_TEMPERATURE = {"draft_temperature": Argument("B", FLOAT)}

OPERATORS = {
    "redistribute": Operator(
        {
            **_DRAFT_LOGITS,
            "temperature": Argument("...", FLOAT),
            **_COLUMNS,
            **_affinity(row_top=("V_d", INT)),
            **_dynamic("..."),
            **_limits("..."),
        },
        {"probs": Argument("..., V_t", FLOAT)},
        loses_gradients=True,
    ),
    "draft": Operator(
        {
            **_DRAFT_LOGITS,
            "temperature": Argument("...", FLOAT),
            "step_keys": Argument("...", LONG),
            "positions": Argument("...", LONG),
            **_ROWS,
            **_dynamic("..."),
            **_limits("..."),
            "branches": Argument("...", INT, optional=True),
        },
        {
            "tokens": Argument("...", LONG),
            "stats": Argument("..., 2 + R + limited", FLOAT),
        },
    ),
    "draft_step": Operator(
        {
            "draft_logits": Argument("B, V_d", LOGITS, strides=2),
            **_STEP,
            **{
                f"step_{name}": rule._replace(shape="S, K, C", strides=0, written=True)
                for name, rule in _KEPT.items()
            },
            "place": Number(0, 2**31 - 2),
            "temperature": Argument("B", FLOAT),
            "seeds": Argument("B", LONG),
            "positions": Argument("B", LONG),
            **_ROWS,
            **_KEPT,
            **_limits("B"),
            "slots": Argument("B", IDS, optional=True),
            "place_id": Argument("1", IDS, optional=True),
        },
        {"tokens": Argument("B, 1", LONG)},
        less=("place", "K"),
    ),
    "verify": Operator(
        {
            **_TARGET_LOGITS,
            **_DRAFTS,
            "draft_rows": _DRAFTS["draft_rows"]._replace(optional=True),
            "draft_token_ids": Argument("N", IDS),
            "draft_offsets": Argument("B + 1", INT),
            "target_temperature": Argument("B", FLOAT),
            **_DRAFT_TEMPERATURE,
            **_KEYS,
            **_COLUMNS,
            "max_draft": _AT_MOST,
            **_dynamic("M"),
            **_limits("B"),
            **_ALLOWED,
            "logprobs": Number(0, 2),
            **_METHOD,
        },
        {
            "tokens": Argument("B, max_draft + 1", LONG),
            "num_accepted": Argument("B", INT),
            "logprobs": Argument("B, max_draft + 1", FLOAT, if_asked="logprobs"),
        },
    ),
    "verify_step": Operator(
        {
            "target_logits": Argument("B, J + 1, V_t", LOGITS, strides=1),
            "draft_logits": Argument("B, K, V_d", LOGITS, strides=2),
            "draft_stats": Argument("B, K, 2 + R or 3 + R", FLOAT),
            "draft_token_ids": Argument("B, J", IDS, strides=1),
            "target_temperature": Argument("B", FLOAT),
            **_DRAFT_TEMPERATURE,
            **_KEYS,
            **_COLUMNS,
            **_dynamic("B, K"),
            **_limits("B"),
            "allowed": Argument("B, J + 1, ceil(V_t / 32)", INT, optional=True, strides=1),
            "logprobs": Number(0, 2),
            **_METHOD,
        },
        {
            "tokens": Argument("B, J + 1", LONG),
            "num_accepted": Argument("B", INT),
            "logprobs": Argument("B, J + 1", FLOAT, if_asked="logprobs"),
        },
        less=("J", "K + 1"),
    ),
    "verify_tree": Operator(
        {
            **_TARGET_LOGITS,
            "tree_token_ids": Argument("N", IDS),
            "parents": Argument("N", INT),
            "tree_offsets": Argument("B + 1", INT),
            "temperature": Argument("B", FLOAT),
            **_KEYS,
            "max_depth": _AT_MOST,
            **_limits("B"),
            **_ALLOWED,
            **_whole_or_not({**_DRAFTS, **_DRAFT_TEMPERATURE, **_COLUMNS, **_dynamic("M")}),
            **_METHOD,
        },
        {
            "tokens": Argument("B, max_depth + 1", LONG),
            "num_accepted": Argument("B", INT),
            "path": Argument("B, max_depth", INT),
        },
    ),
    "sum_shard": Operator(
        {
            **_SHARD_LOGITS,
            "draft_token_ids": Argument("N", IDS),
            "draft_offsets": Argument("B + 1", INT),
            "target_temperature": Argument("B", FLOAT),
            "max_draft": _AT_MOST,
            **_FIRST_CHUNK,
            "target_size": Number(1, 2**28),
        },
        {"sums": Argument("B, max_draft + 1, ceil(W / 1024) + 1, 2", FLOAT)},
    ),
    "verify_shard": Operator(
        {
            **_SHARD_LOGITS,
            "sums": Argument("B, max_draft + 1, ceil(V_t / 1024) + 1, 2", FLOAT),
            **_DRAFTS,
            "draft_stats": _DRAFTS["draft_stats"]._replace(optional=False),
            "draft_rows": _DRAFTS["draft_rows"]._replace(optional=True),
            "draft_token_ids": Argument("N", IDS),
            "draft_offsets": Argument("B + 1", INT),
            "target_temperature": Argument("B", FLOAT),
            **_DRAFT_TEMPERATURE,
            **_KEYS,
            **_COLUMNS,
            "max_draft": _AT_MOST,
            **_FIRST_CHUNK,
            **_dynamic("M"),
            "drawn": Argument("B", LONG, optional=True, needed_with=("residuals",)),
            "residuals": Argument("B, ceil(V_t / 1024), 2", FLOAT, optional=True),
        },
        {
            "tokens": Argument("B, max_draft + 1", LONG),
            "num_accepted": Argument("B", INT),
            "found": Argument("B", LONG),
            "residual": Argument("B, ceil(W / 1024), 2", FLOAT),
        },
    ),
    "overlap": Operator(
        {
            "target_logits": Argument("..., V_t", LOGITS, strides=2),
            **_DRAFT_LOGITS,
            "target_temperature": Argument("...", FLOAT),
            "draft_temperature": Argument("...", FLOAT),
            **_COLUMNS,
            **_dynamic("..."),
        },
        {
            "alpha": Argument("...", FLOAT),
            "below": Argument("..., ceil(V_t / 32)", INT),
            "stats": Argument("..., 3 + R", FLOAT),
        },
        loses_gradients=True,
    ),
    "overlap_backward": Operator(
        {
            "grad": Argument("...", FLOAT),
            "below": Argument("..., ceil(V_t / 32)", INT),
            "stats": Argument("..., 3 + R", FLOAT),
            **_DRAFT_LOGITS,
            "draft_temperature": Argument("...", FLOAT),
            **_ROWS,
            **_dynamic("..."),
        },
        {
            "draft_grads": Argument("..., V_d", LOGITS, dtype_of="draft_logits"),
            "dynamic_grads": Argument("..., C", LOGITS, dtype_of="draft_logits"),
        },
        loses_gradients=True,
    ),
    "gather_logits": Operator(
        {
            "hidden": Argument("..., d", LOGITS, strides=2),
            "weight": Argument("V, d", LOGITS, strides=2, dtype_of="hidden"),
            "tokens": Argument("..., C", IDS),
            "bias": Argument("V", LOGITS, optional=True, dtype_of="hidden"),
        },
        {"logits": Argument("..., C", LOGITS, dtype_of="hidden")},
        loses_gradients=True,
    ),
    "name_tokens": Operator(
        {
            "contexts": Argument("S, L", IDS, strides=1),
            "pruned": Argument("V_t", BOOL, optional=True),
            "successor_offsets": Argument(
                "V_t + 1", INT, optional=True, needed_with=("successors",)
            ),
            "successors": Argument("nnz", INT, optional=True, needed_with=("successor_offsets",)),
            "recent": _AT_MOST,
            "window": _AT_MOST,
            "width": Number(0, 2**28),
            "decided": Argument("B, n", IDS, optional=True),
            "drafts": Argument("M, K", LONG, optional=True),
            "place": _AT_MOST,
            "lengths": Argument("S", IDS, optional=True),
            "slots": Argument("B", IDS, optional=True),
            "place_id": Argument("1", IDS, optional=True),
        },
        {"tokens": Argument("B, width", INT)},
    ),
    "step_keys": Operator(
        {
            "seeds": Argument("...", LONG),
            "positions": Argument("...", LONG),
            "stage": Number(0, 2**32 - 1),
        },
        {"step_keys": Argument("...", LONG)},
    ),
}

Sizes = dict[str, Any]  # by symbol, "..." a tuple; and the numbers by name


def sizes_of(operator: str, arguments: Mapping[str, Any]) -> Sizes:
    """Find the size of each symbol in the first argument that has it; nothing is checked."""
    sizes: Sizes = {"limited": int(any(arguments.get(name) is not None for name in LIMITS))}
    for name, rule in OPERATORS[operator].arguments.items():
        value = arguments[name]
        if isinstance(rule, Number):
            sizes[name] = value
        elif value is not None:
            for symbol, size in symbols(rule, value.shape):
                sizes.setdefault(symbol, size)
    sizes.setdefault("C", 0)  # no dynamic tokens
    sizes.setdefault("B", sizes.get("S"))  # every slot has a row
    return sizes


def symbols(rule: Argument, shape: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the symbols that a tensor of this shape gives a size, and these."""
    dimensions = rule.shape.split(", ")
    if dimensions[0] == "...":
        named = len(dimensions) - 1
        yield "...", tuple(shape[: len(shape) - named])
        dimensions, shape = dimensions[1:], shape[len(shape) - named :]
    for dimension, size in zip(dimensions, shape, strict=False):
        if one := re.fullmatch(r"([A-Za-z]\w*)(?: \+ (\d))?", dimension):
            yield one[1], size - int(one[2] or 0)


def size_of(dimension: str, sizes: Sizes) -> Any:
    """Evaluate a dimension: a sum of symbols, numbers and quotients."""
    return sum(_term(term, sizes) for term in dimension.split(" + "))


def _term(term: str, sizes: Sizes) -> Any:
    if quotient := re.fullmatch(r"ceil\((\w+) / (\d+)\)", term):
        return -(-sizes[quotient[1]] // int(quotient[2]))
    return int(term) if term.isdigit() else sizes[term]


def shape_of(rule: Argument, sizes: Sizes) -> tuple[Any, ...]:
    if rule.if_asked is not None and not sizes[rule.if_asked]:
        return (0,)
    sizes_of_each = (
        sizes["..."] if dimension == "..." else (size_of(dimension, sizes),)
        for dimension in rule.shape.split(", ")
    )
    return tuple(size for each in sizes_of_each for size in each)


def dtype_of(rule: Argument, arguments: Mapping[str, Any]) -> torch.dtype:
    dtype: torch.dtype = rule.dtypes[0] if rule.dtype_of is None else arguments[rule.dtype_of].dtype
    return dtype
