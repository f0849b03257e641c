"""Gradients that would be lost without a word are refused.

`redistribute` and `gather_logits` have no formula for one. Under plain autograd the operator itself
refuses (csrc/ops/checks.h). Here is what it cannot see: fake tensors, the tangents of forward-mode
differentiation, and transforms of torch.func, which take their wrappers off before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

from .contract import NAMESPACE, OPERATORS
from .library import operator as find_operator

_library = torch.library.Library(NAMESPACE, "IMPL")


def refuse_gradients(operator: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Refuse tensors that autograd records, and dual tensors, whose tangent would be lost.

    Args:
        operator: its name without `rdk::`.
        tensors: its arguments, by name.

    Raises:
        RuntimeError: naming the argument.
    """
    for name, tensor in tensors.items():
        if tensor is None or not tensor.is_floating_point():
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            got, needs = "requires grad", "call it under torch.no_grad(), pass .detach(),"
        elif forward_ad.unpack_dual(tensor).tangent is not None:
            got, needs = "has a tangent", "pass .detach()"
        else:
            continue
        raise RuntimeError(
            f"rdk::{operator}: {name} {got}, but needs a tensor that does not, because the "
            f"operator has no gradient; {needs} or use rdk_cuda.reference.{operator}, which has one"
        )


def _in_transform(operator: str) -> Callable[..., Any]:
    """Do with an operator as the innermost transform of torch.func does.

    Its kernel in PyTorch serves all operators and cannot be called once there is one for this
    operator. So what it does is here too: take this level's wrappers off, call the operator one
    level down, and put a wrapper on the result.
    """
    packet = find_operator(operator)
    names = [argument.name for argument in packet.default._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        from torch._C import _functorch
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

        arguments = dict(zip(names, args, strict=False)) | kwargs
        tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
        refuse_gradients(operator, tensors)
        transform = retrieve_current_functorch_interpreter()
        level = transform.level()
        own = {name: t for name, t in tensors.items() if _functorch.maybe_get_level(t) == level}
        batched = {name: t for name, t in own.items() if _functorch.is_batchedtensor(t)}
        tracked = {name: t for name, t in own.items() if _functorch.is_gradtrackingtensor(t)}
        arguments |= {name: _functorch._unwrap_for_grad(t, level) for name, t in tracked.items()}
        rows = {
            name: _functorch.get_unwrapped(t).unbind(_functorch.maybe_get_bdim(t))
            for name, t in batched.items()
        }
        with transform.lower():
            if batched:
                slices = zip(*rows.values(), strict=True)
                each = [packet(**arguments | dict(zip(rows, row, strict=True))) for row in slices]
                result = tree_map(lambda *of_slices: torch.stack(of_slices), *each)
            else:
                result = packet(**arguments)
        if batched:
            return tree_map(lambda each: _functorch._add_batch_dim(each, 0, level), result)
        return (
            tree_map(lambda each: _functorch._wrap_for_grad(each, level), result)
            if tracked
            else result
        )

    return kernel


for _name in [name for name, each in OPERATORS.items() if each.loses_gradients]:
    _library.impl(_name, _in_transform(_name), "FuncTorchDynamicLayerFrontMode")
