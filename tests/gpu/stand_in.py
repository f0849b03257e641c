"""The operators on a device, for callers whose tensors are on the CPU.

With an `OnDevice` in the place of `torch.ops.rdk`, the tests of the CPU operators are tests of the
CUDA kernels without a change.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS
from rdk_cuda.affinity import Affinity


def laid_out_alike(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy with the same strides and offset, in a storage that has all that surrounds it.

    `Tensor.to` would make slices, padded rows and expanded tensors contiguous, and so hide from the
    kernels what the tests lay out for them. A tensor that is not on the CPU stays where it is: it
    is there to be refused.
    """
    if tensor.device.type != "cpu":
        return tensor
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    storage = whole.to(device, copy=True).untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def moved(value: Any, device: torch.device) -> Any:
    """The same with every tensor in it on the device; what holds no tensor is returned as it is."""
    if isinstance(value, Tensor):
        return laid_out_alike(value, device)
    if isinstance(value, Affinity):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(moved(item, device) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


class OnDevice:
    """`torch.ops.rdk` for tensors on the CPU: copies them, runs the operator, copies the results.

    Args:
        operators: whose kernels run, `torch.ops.rdk` as a rule.
        device: where.
    """

    def __init__(self, operators: Any, device: torch.device) -> None:
        self.operators, self.device = operators, device

    def __getattr__(self, name: str) -> Operator:
        written = [n for n, rule in OPERATORS[name].tensors.items() if rule.written]
        return Operator(getattr(self.operators, name), self.device, tuple(written))


class Operator:
    """One of them; what else is asked of it, as torch itself does, is the operator's own."""

    def __init__(self, operator: Any, device: torch.device, written: tuple[str, ...] = ()) -> None:
        self.operator, self.device, self.written = operator, device, written

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        there, named_there = moved(arguments, self.device), moved(named, self.device)
        results = self.operator(*there, **named_there)
        if self.written:
            names = [argument.name for argument in self.operator.default._schema.arguments]
            here = dict(zip(names, arguments, strict=False)) | named
            changed = dict(zip(names, there, strict=False)) | named_there
            for name in self.written:
                if here.get(name) is not None:
                    here[name].copy_(changed[name])
        return results.cpu() if isinstance(results, Tensor) else tuple(r.cpu() for r in results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)
