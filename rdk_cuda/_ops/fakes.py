"""What the operators return, in shapes and dtypes only: for torch.compile and the meta device.

Arguments have the names of the schemas in csrc/ops.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .gradients import refuse_gradients

Fake = Callable[[SimpleNamespace], Any]


def _fake(operator: str, *, refuses_grad: bool = False) -> Callable[[Fake], Fake]:
    """Registers a fake kernel, which refuses tensors of several devices as the operator does.

    Args:
        refuses_grad: refuse tensors that require grad too, because a compiled graph runs the
            operator itself outside of autograd.
    """
    schema = getattr(torch.ops.rdk, operator).default._schema
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments}

    def register(kernel: Fake) -> Fake:
        def checked(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
            first_name, first = next(iter(tensors.items()))
            for name, tensor in tensors.items():
                if tensor.device != first.device:
                    raise RuntimeError(
                        f"rdk::{operator}: {name} is on {tensor.device}, but needs the device of "
                        f"{first_name}, {first.device}; move it with .to({first_name}.device)"
                    )
            if refuses_grad:
                refuse_gradients(operator, tensors)
            return kernel(SimpleNamespace(**(defaults | arguments)))

        torch.library.register_fake(f"rdk::{operator}", checked)
        return kernel

    return register


@_fake("redistribute", refuses_grad=True)
def _redistribute(given: SimpleNamespace) -> Tensor:
    logits: Tensor = given.draft_logits
    return logits.new_empty(
        (*logits.shape[:-1], given.col_offsets.shape[0] - 1), dtype=torch.float32
    )


@_fake("draft")
def _draft(given: SimpleNamespace) -> tuple[Tensor, Tensor]:
    logits: Tensor = given.draft_logits
    leading, rank = logits.shape[:-1], given.spread.shape[1]
    truncates = any(limit is not None for limit in (given.top_k, given.top_p, given.min_p))
    return (
        logits.new_empty(leading, dtype=torch.int64),
        logits.new_empty((*leading, 2 + rank + truncates), dtype=torch.float32),
    )


@_fake("verify")
def _verify(given: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    logits: Tensor = given.target_logits
    sequences = given.draft_offsets.shape[0] - 1
    shape = (sequences, given.max_draft + 1)
    return (
        logits.new_empty(shape, dtype=torch.int64),
        logits.new_empty((sequences,), dtype=torch.int32),
        logits.new_empty(shape if given.logprobs else (0,), dtype=torch.float32),
    )


@_fake("verify_tree")
def _verify_tree(given: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    logits: Tensor = given.target_logits
    sequences = given.tree_offsets.shape[0] - 1
    return (
        logits.new_empty((sequences, given.max_depth + 1), dtype=torch.int64),
        logits.new_empty((sequences,), dtype=torch.int32),
        logits.new_empty((sequences, given.max_depth), dtype=torch.int32),
    )


@_fake("gather_logits", refuses_grad=True)
def _gather_logits(given: SimpleNamespace) -> Tensor:
    hidden: Tensor = given.hidden
    return hidden.new_empty(given.tokens.shape)


@_fake("step_keys")
def _step_keys(given: SimpleNamespace) -> Tensor:
    return torch.empty_like(given.seeds)
