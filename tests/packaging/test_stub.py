"""Type checkers are told what is registered: rdk_cuda/_ops/__init__.pyi has the schemas.

`tests/documentation/test_contract.py` holds docs/design.md to them, and fake kernels take their
arguments' names from them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import torch

import rdk_cuda
from rdk_cuda import _ops

STUB = Path(_ops.__file__).with_name("__init__.pyi")
TYPES = {"Tensor": "Tensor", "Optional[Tensor]": "Tensor | None", "int": "int"}


def declared() -> dict[str, str]:
    """Every function of the stub, as Python writes it."""
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    functions = [each for each in body if isinstance(each, ast.FunctionDef)]
    return {
        each.name: f"({ast.unparse(each.args)}) -> {ast.unparse(each.returns or each)}"
        for each in functions
    }


def registered(name: str) -> str:
    """The schema of an operator, as the stub has to write it."""
    schema = getattr(torch.ops.rdk, name).default._schema
    arguments = [
        f"{argument.name}: {TYPES[str(argument.type)]}"
        + (f"={argument.default_value}" if argument.has_default_value() else "")
        for argument in schema.arguments
    ]
    results = [TYPES[str(result.type)] for result in schema.returns]
    returned = results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    return f"({', '.join(arguments)}) -> {returned}"


def test_the_stub_declares_what_is_registered() -> None:
    operators = torch._C._dispatch_get_all_op_names()
    names = {name.removeprefix("rdk::") for name in operators if name.startswith("rdk::")}
    assert declared() == {name: registered(name) for name in names}
    for name in names:
        assert getattr(_ops, name) is getattr(torch.ops.rdk, name)
        assert callable(getattr(rdk_cuda, name))
