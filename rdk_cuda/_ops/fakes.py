"""The operators' results in shapes and dtypes only, for torch.compile and the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .contract import NAMESPACE, OPERATORS, dtype_of, shape_of, sizes_of
from .gradients import refuse_gradients
from .library import operator as find_operator


def _register(operator: str) -> None:
    """A fake kernel, which refuses tensors of several devices as the operator does.

    It refuses tensors that require grad too, because a compiled graph runs the operator itself
    outside of autograd.
    """
    described = OPERATORS[operator]
    schema = find_operator(operator).default._schema
    defaults = {argument.name: argument.default_value for argument in schema.arguments}

    def fake(*args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
        arguments = defaults | dict(zip(defaults, args, strict=False)) | kwargs
        tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
        first_name, first = next(iter(tensors.items()))
        for name, tensor in tensors.items():
            if tensor.device != first.device:
                raise RuntimeError(
                    f"rdk::{operator}: {name} is on {tensor.device}, but needs the device of "
                    f"{first_name}, {first.device}; move it with .to({first_name}.device)"
                )
        if described.loses_gradients:
            refuse_gradients(operator, tensors)
        sizes = sizes_of(operator, arguments)
        results = tuple(
            first.new_empty(shape_of(rule, sizes), dtype=dtype_of(rule, arguments))
            for rule in described.results.values()
        )
        return results if len(results) > 1 else results[0]

    torch.library.register_fake(f"{NAMESPACE}::{operator}", fake)


for _name in OPERATORS:
    _register(_name)
