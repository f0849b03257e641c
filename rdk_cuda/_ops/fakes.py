"""What the operators return, in shapes and dtypes only: for torch.compile and the meta device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")


def _fake(
    operator: str, *, refuses_grad: bool = False
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Registers a fake kernel, which refuses tensors of several devices as the operator does.

    Args:
        refuses_grad: refuse tensors that require grad too, because a compiled graph runs the
            operator itself outside of autograd.
    """

    def register(kernel: Callable[..., _Result]) -> Callable[..., _Result]:
        signature = inspect.signature(kernel)

        @wraps(kernel)
        def checked(*args: Any, **kwargs: Any) -> _Result:
            arguments = signature.bind(*args, **kwargs).arguments
            tensors = {name: t for name, t in arguments.items() if isinstance(t, Tensor)}
            first_name, first = next(iter(tensors.items()))
            for name, tensor in tensors.items():
                if tensor.device != first.device:
                    raise RuntimeError(
                        f"rdk::{operator}: {name} is on {tensor.device}, but needs the device of "
                        f"{first_name}, {first.device}; move it with .to({first_name}.device)"
                    )
                if refuses_grad and torch.is_grad_enabled() and tensor.requires_grad:
                    raise RuntimeError(
                        f"rdk::{operator}: {name} requires grad, but needs a tensor that does not, "
                        "because the operator has no gradient; call it under torch.no_grad(), pass "
                        f".detach(), or use rdk_cuda.reference.{operator}, which has one"
                    )
            return kernel(*args, **kwargs)

        torch.library.register_fake(f"rdk::{operator}", checked)
        return checked

    return register


@_fake("redistribute", refuses_grad=True)
def _redistribute(
    draft_logits: Tensor,
    temperature: Tensor,
    bias: Tensor,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    row_top: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> Tensor:
    size = col_offsets.shape[0] - 1
    return draft_logits.new_empty((*draft_logits.shape[:-1], size), dtype=torch.float32)


@_fake("draft")
def _draft(
    draft_logits: Tensor,
    temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor,
    row_offsets: Tensor,
    row_targets: Tensor,
    row_cdf: Tensor,
    row_top: Tensor,
    spread: Tensor,
    spread_cdf: Tensor,
    prior_cdf: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    leading = draft_logits.shape[:-1]
    return (
        draft_logits.new_empty(leading, dtype=torch.int64),
        draft_logits.new_empty((*leading, 2 + spread.shape[1]), dtype=torch.float32),
    )


@_fake("verify")
def _verify(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_stats: Tensor | None,
    draft_rows: Tensor | None,
    draft_token_ids: Tensor,
    draft_offsets: Tensor,
    target_temperature: Tensor,
    draft_temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    max_draft: int,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    sequences = draft_offsets.shape[0] - 1
    return (
        target_logits.new_empty((sequences, max_draft + 1), dtype=torch.int64),
        target_logits.new_empty((sequences,), dtype=torch.int32),
    )


@_fake("gather_logits", refuses_grad=True)
def _gather_logits(
    hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None = None
) -> Tensor:
    return hidden.new_empty(tokens.shape)


@_fake("step_keys")
def _step_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    return torch.empty_like(seeds)
