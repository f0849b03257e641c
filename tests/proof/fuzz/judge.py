"""Whether the contract accepts a call: a judge who reads nothing but rdk_cuda/_ops/contract.py."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import Any

from torch import Tensor

from rdk_cuda._ops.contract import (
    AT_LEAST_ONE,
    LIMITS,
    MAX_PRIORS,
    OPERATORS,
    Argument,
    Number,
    Sizes,
    size_of,
    symbols,
)

Reasons = dict[str, str]  # by the argument that the error may name


def refusals(operator: str, arguments: dict[str, Any]) -> Reasons:
    """Why a call is refused; empty where it is accepted.

    Where sizes disagree, the error may name any argument that has the size, the odd one first.
    """
    rules = OPERATORS[operator].arguments
    tensors = {n: value for n, value in arguments.items() if isinstance(value, Tensor)}
    first = next(iter(tensors.values()))
    reasons: Reasons = {}
    for name, rule in rules.items():
        value = arguments[name]
        if isinstance(rule, Number):
            if not rule.least <= value <= rule.most:
                reasons[name] = f"is {value}"
        elif value is None:
            if not rule.optional or any(arguments[n] is not None for n in rule.needed_with):
                reasons[name] = "is missing"
        elif value.device != first.device:
            reasons[name] = f"is on {value.device}"
        elif found := alone(rule, value, arguments):
            reasons[name] = found
    sound = {n: t for n, t in tensors.items() if not reasons.get(n, "").endswith("dimensions")}
    numbers = {n: arguments[n] for n, rule in rules.items() if isinstance(rule, Number)}
    numbers["limited"] = int(any(arguments.get(name) is not None for name in LIMITS))
    return reasons | disagreements(rules, sound, numbers, OPERATORS[operator].less)


def alone(rule: Argument, value: Tensor, arguments: dict[str, Any]) -> str | None:
    """What is wrong with one tensor, its sizes apart."""
    like = None if rule.dtype_of is None else arguments[rule.dtype_of]
    if value.dtype not in (rule.dtypes if like is None else (like.dtype,)):
        return f"has dtype {value.dtype}"
    named = len(rule.shape.replace("..., ", "").split(", ")) - (rule.shape == "...")
    if value.dim() < named or (value.dim() > named and "..." not in rule.shape):
        return f"has {value.dim()} dimensions"
    for symbol, size in symbols(rule, value.shape):
        if symbol != "..." and size < (symbol in AT_LEAST_ONE):
            return f"has {symbol} = {size}"
    if not rule.strides:
        return None if value.is_contiguous() else "is not contiguous"
    if value.numel() and value.shape[-1] > 1 and value.stride(-1) != 1:
        return f"has stride {value.stride(-1)} in its last dimension"
    if value.numel() and row_strides(value) > rule.strides:
        return f"has rows with {row_strides(value)} strides"
    return None


def row_strides(value: Tensor) -> int:
    """How many strides the leading dimensions need once those that continue each other are one."""
    leading = [
        (size, stride)
        for size, stride in zip(value.shape[:-1], value.stride()[:-1], strict=True)
        if size > 1
    ]
    continued = sum(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(leading))
    return len(leading) - continued


def disagreements(
    rules: Any, tensors: dict[str, Tensor], numbers: dict[str, int], less: tuple[str, str] | None
) -> Reasons:
    """What is wrong with the sizes of tensors that are right by themselves."""
    reasons: Reasons = {}
    given: dict[str, dict[str, Any]] = defaultdict(dict)  # sizes by symbol and argument
    for name, value in tensors.items():
        for symbol, size in symbols(rules[name], value.shape):
            given[symbol][name] = size
    sizes: Sizes = {symbol: next(iter(each.values())) for symbol, each in given.items()} | numbers
    for symbol, each in given.items():
        odd = [name for name, size in each.items() if size != sizes[symbol]]
        if odd or (symbol == "R" and sizes["R"] > MAX_PRIORS):
            having = [n for n in tensors if mentions(rules[n], symbol)]
            why = f"has {symbol} = {sorted(map(str, set(each.values())))}"
            reasons |= {n: why for n in (*odd, *having) if n not in reasons}
    if less and any(
        low >= size_of(less[1], {"K": high})
        for low in (given[less[0]] | {n: x for n, x in numbers.items() if n == less[0]}).values()
        for high in given["K"].values()
    ):
        having = [n for n in tensors if mentions(rules[n], less[0]) or mentions(rules[n], "K")]
        reasons = dict.fromkeys([*having, less[0]], f"{less[0]} is not below {less[1]}") | reasons
    for name, value in tensors.items():
        shape = rules[name].shape.split(", ")
        for dimension, size in zip(reversed(shape), reversed(value.shape), strict=False):
            symbol = re.fullmatch(r"([A-Za-z]\w*)(?: \+ \d)?", dimension)
            if dimension == "..." or (symbol and symbol[1] not in numbers):
                continue
            least = dimension.removeprefix(">= ")
            try:
                needed = {size_of(choice, sizes) for choice in least.split(" or ")}
            except KeyError:
                continue  # the tensor that would say is wrong by itself
            if size not in needed and not (least != dimension and size > max(needed)):
                reasons[name] = f"has {size} for {dimension}"
    return reasons


def mentions(rule: Argument, symbol: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(symbol)}(?!\w)", rule.shape) is not None


def named_in(operator: str, text: str) -> str | None:
    """The argument that an operator's own error names, or one that PyTorch's mentions."""
    own = re.search(rf"\brdk\w*::{operator}: (\w+) .*, but needs ", text, re.DOTALL)
    names = [own[1]] if own else list(OPERATORS[operator].arguments)
    return next((name for name in names if re.search(rf"\b{name}\b", text)), None)
